"""What the invented loops have in common: claims, clipping, gradients, noise and whole loops that lack a part.

The loops were written from the tutorial alone by someone who had not seen the checks.
"""

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.zoo.catalogue import DELTA, N, Specimen
from benchmarks.zoo.first_order import Array, Settings
from dpzero_theory.audit.claim import Claim
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Release

Train = TypeVar("Train", bound=Callable[..., Any])
RUNS = 200
REGISTERED: dict[str, list[Specimen]] = defaultdict(list)
"""The loops of each module, by the module's name, in the order in which they are defined."""


@functools.cache
def _epsilon(noise: float, steps: int, sampling: str, relation: str, rate: float, delta: float) -> float:
    release = Release(noise, steps, sampling=sampling, relation=relation, sample_rate=1 if sampling == "full" else rate)
    return epsilon_of_history([release], delta).upper * 1.000001


def claim_of(
    noise: float,
    steps: int,
    sampling: str = "poisson",
    relation: str = "add-remove",
    batch: float = 12,
    clip: float = 1.0,
    average: str = "mean",
    delta: float = DELTA,
    accounted: dict[str, Any] | None = None,
) -> Callable[[], Claim]:
    """Return a function that returns the loop's claim. Its epsilon at `delta` is the accountant's upper bound.

    noise: the noise multiplier. batch: the expected batch size. average: "mean" if a release is a noised sum divided by
    `batch`, "sum" if it is the sum itself. accounted: what its author gave the accountant where that differs from
    what the loop does (noise, steps, sampling, relation, rate or delta, by these names)."""

    given: dict[str, Any] = {
        "noise": noise,
        "steps": steps,
        "sampling": sampling,
        "relation": relation,
        "rate": batch / N,
        "delta": delta,
    }

    def claim() -> Claim:
        return Claim(
            epsilon=_epsilon(**{**given, **(accounted or {})}),
            delta=delta,
            relation=relation,
            sampling=sampling,
            n=N,
            batch=batch,
            steps=steps,
            noise_multiplier=noise,
            clip=clip,
            average=average,
        )

    return claim


def full(
    noise: float, steps: int, relation: str = "add-remove", average: str = "sum", **others: Any
) -> Callable[[], Claim]:
    """Return what makes the claim of a loop on full batches."""
    return claim_of(noise, steps, "full", relation, N, average=average, **others)


def faulty(claim: Callable[[], Claim], finds: str, *also: str, **view: Any) -> Callable[[Train], Train]:
    """Register a loop with a fault. `finds` is the check that ought to find it, `also` are others that rightly may."""

    def register(train: Train) -> Train:
        @functools.wraps(train)
        def make() -> Train:
            return train

        REGISTERED[train.__module__].append(
            Specimen(make, finds, claim, also=also, runs=RUNS, repeats=1, **{"seed": "public", **view})
        )
        return train

    return register


def sound(claim: Callable[[], Claim], **view: Any) -> Callable[[Train], Train]:
    """Register a sound loop."""
    return faulty(claim, "", **view)


quiet = np.errstate(all="ignore")  # numpy's warnings are printed and would tell of a record that overflows


def finite_rows(g: Any) -> Any:
    """Return the array `g` of shape (rows, d) with zeros in each row that has a NaN or an infinite number."""
    return np.where(np.isfinite(g).all(axis=1, keepdims=True), g, 0.0)


def clip_rows(g: Any, clip: Any) -> Any:
    """Return the rows of `g`, each scaled down to L2 norm `clip` if its norm is larger.

    A row becomes zero if its norm overflows, or if a number in it is NaN or infinite."""
    g = finite_rows(g)
    return g * np.minimum(1.0, clip / np.maximum(np.linalg.norm(g, axis=1, keepdims=True), 1e-12))


def clip_numbers(d: Any, clip: Any) -> Any:
    return np.clip(np.where(np.isfinite(d), d, 0.0), -clip, clip)


def logistic(rows: Any, w: Any) -> Any:
    """Return the gradients of log(1 + exp(-y x.w)) at the weights w, a row for each record. A row of `rows` has the
    five features x and the label y of a record."""
    x, y = rows[:, :5], rows[:, 5]
    return (-y / (1.0 + np.exp(y * (x @ w))))[:, None] * x


def logistic_loss(rows: Any, w: Any) -> Any:
    return np.logaddexp(0.0, -rows[:, 5] * (rows[:, :5] @ w))


def squares(rows: Any, w: Any) -> Any:
    x, y = rows[:, :5], rows[:, 5]
    return (x @ w - y)[:, None] * x


def hinge(rows: Any, w: Any) -> Any:
    x, y = rows[:, :5], rows[:, 5]
    return np.where(y * (x @ w) < 1.0, -y, 0.0)[:, None] * x


def huber(rows: Any, w: Any) -> Any:
    x, y = rows[:, :5], rows[:, 5]
    return np.clip(x @ w - y, -0.5, 0.5)[:, None] * x


def poisson(rng: Any, count: Any, rate: Any) -> Any:
    return np.flatnonzero(rng.random(count) < rate)


def tensor(records: Any, dtype: Any = torch.float32) -> Any:
    return torch.from_numpy(np.array(records, dtype=np.float64)).to(dtype)


def os_noise(shape: Any, std: Any, dtype: Any = torch.float32) -> Any:
    return torch.from_numpy(np.random.default_rng().standard_normal(shape)).to(dtype) * std


def torch_clip(g: Any, clip: Any) -> Any:
    g = torch.where(torch.isfinite(g).all(dim=1, keepdim=True), g, torch.zeros_like(g))
    return g * (clip / g.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)


def torch_logistic(x: Any, y: Any, w: Any) -> Any:
    return (-y * torch.sigmoid(-y * (x @ w)))[:, None] * x


MLP_SHAPES = ((3, 5), (3,), (3,))


def mlp_weights(seed: Any, dtype: Any = torch.float32) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(21) * 0.5).to(dtype)


def mlp_grads(rows: Any, flat: Any, loss: Any = "logistic") -> Any:
    """Per-record gradients of a network with one hidden layer, as three arrays; each record has its own weights."""
    count = len(rows)
    parts = [
        p.expand(count, *p.shape).clone().requires_grad_() for p in (flat[:15].reshape(3, 5), flat[15:18], flat[18:])
    ]
    x, y = rows[:, :5], rows[:, 5]
    out = (torch.tanh(torch.einsum("nhd,nd->nh", parts[0], x) + parts[1]) * parts[2]).sum(dim=1)
    each = torch.nn.functional.softplus(-y * out) if loss == "logistic" else 0.5 * (out - y) ** 2
    return [g.reshape(count, -1) for g in torch.autograd.grad(each.sum(), parts)]


def dpsgd(records: Array, settings: Settings, batches: Any, noise: Any = None, grads: Any = logistic) -> Any:
    """DP-SGD on the batches that `batches` draws, a function of (step, weights)."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    noise = noise or np.random.default_rng()
    w, releases, used, clean = np.zeros(5), [], [], []
    for step in range(settings["steps"]):
        batch = np.asarray(batches(step, w), dtype=int)
        total = clip_rows(grads(records[batch], w), clip).sum(axis=0)
        release = (total + s * clip * noise.standard_normal(5)) / size
        w = w - settings.get("step_size", 0.1) * release
        releases.append(release)
        clean.append(total / size)
        used.append(batch.tolist())
    return {"releases": np.array(releases), "clean": np.array(clean), "batches": used}


def dpgd(records: Array, settings: Settings, contributions: Any, width: Any = 5, to_step: Any = None) -> Any:
    """Return the outputs of a loop that releases noised sums of all records' contributions, with the claimed noise.

    `contributions` is a function of (weights, step) that returns one row of `width` numbers for each record. `to_step`
    turns a release into the vector of 5 numbers that moves the weights; without it these are the first 5 numbers."""
    s, clip, noise = settings["noise_multiplier"], settings["clip"], np.random.default_rng()
    w, releases, clean = np.zeros(5), [], []
    for step in range(settings["steps"]):
        total = contributions(w, step).sum(axis=0)
        release = total + s * clip * noise.standard_normal(width)
        w = w - settings.get("step_size", 0.1) / settings["n"] * (release[:5] if to_step is None else to_step(release))
        releases.append(release)
        clean.append(total)
    return {"releases": np.array(releases), "clean": np.array(clean)}


def noised(draw: Any, grads: Any = logistic) -> Any:
    """Return a loop over all records whose release is the clipped sum of their gradients plus draw(step, standard
    deviation), where that is the claimed noise's."""

    def train(records: Array, settings: Settings) -> Any:
        s, clip = settings["noise_multiplier"], settings["clip"]
        w, releases, clean = np.zeros(5), [], []
        for step in range(settings["steps"]):
            total = clip_rows(grads(records, w), clip).sum(axis=0)
            release = total + draw(step, s * clip)
            w = w - settings.get("step_size", 0.1) / settings["n"] * release
            releases.append(release)
            clean.append(total)
        return {"releases": np.array(releases), "clean": np.array(clean)}

    return train


def observed(records: Array, settings: Settings, observe: Any = None, rate: Any = None) -> Any:
    """Sound DP-SGD on Poisson batches; observe(step, batch, weights, release) is called after each step."""
    s, clip, size = settings["noise_multiplier"], settings["clip"], settings["batch"]
    rng, w = np.random.default_rng(), np.zeros(5)
    releases, used = [], []
    for step in range(settings["steps"]):
        batch = poisson(rng, len(records), size / settings["n"])
        total = clip_rows(logistic(records[batch], w), clip).sum(axis=0)
        release = (total + s * clip * rng.standard_normal(5)) / size
        lr = settings.get("step_size", 0.1) * (1.0 if rate is None else rate(step, w))
        w = w - lr * release
        releases.append(release)
        used.append(batch.tolist())
        if observe is not None and observe(step, batch, w, release) == "stop":
            break
    return {"releases": np.array(releases), "batches": used}, w
