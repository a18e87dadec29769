"""Tests from a module to a problem file: derivatives, constants of a network, the command, what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from dpzero_theory import datasets, params
from dpzero_theory.check import PreconditionError
from dpzero_theory.curvature import __main__ as command
from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.forward import measure_forward
from dpzero_theory.curvature.layers import layer_ranks
from dpzero_theory.curvature.measure import MeasureSettings, measure
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.region import common
from dpzero_theory.curvature.spectrum import Effort, measure_spectrum
from dpzero_theory.curvature.tasks import cross_entropy, load, mlp_digits
from dpzero_theory.problem_file import ProblemFile
from tests.curvature.small import EFFORT, Weights, contains, full_hessian, generator, nearby, small_network

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


def test_products_are_those_of_the_full_hessian() -> None:
    objective = small_network()
    x = nearby(objective.start, 1.0, generator())
    exact = full_hessian(objective, x)
    v = torch.randn(objective.d, generator=generator(1), dtype=torch.float64)
    torch.testing.assert_close(objective.hessian(x).apply(v), exact @ v, atol=1e-12, rtol=1e-10)


def test_a_product_with_a_row_of_a_basis_allocates_no_more_than_with_a_vector() -> None:
    """torch copies a tangent that does not lie in memory as its weight does, into as much memory as the weight is a
    view of: here all d weights, once for each weight."""
    objective = small_network()
    hessian, basis = objective.hessian(objective.start), torch.ones(3, objective.d, dtype=torch.float64)

    def allocated(direction: torch.Tensor) -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            hessian.apply(direction)
        return sum(max(0, event.self_cpu_memory_usage) for event in seen.events())

    allocated(basis[1])  # a first product makes what later ones keep
    assert allocated(basis[1]) == allocated(basis[1].clone())


def test_gradients_and_losses() -> None:
    objective = small_network()
    x = objective.start
    loop = []
    module = tasks.mlp_digits(2, 30, 0).module
    for features, labels in objective.batches:
        for a, b in zip(features, labels, strict=True):
            module.zero_grad()
            loss = nn.functional.cross_entropy(module(a[None]), b[None])
            loss.backward()  # type: ignore[no-untyped-call]
            loop.append(torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]))
    rows = torch.stack(loop)
    torch.testing.assert_close(objective.gradient_norms(x), rows.norm(dim=1))
    torch.testing.assert_close(objective.gradient(x), rows.mean(dim=0))
    u = torch.randn(objective.d, generator=generator(2), dtype=torch.float64)
    h = 1e-5
    differences = (objective.losses(x + h * u) - objective.losses(x - h * u)) / (2 * h)
    torch.testing.assert_close(differences, rows @ u, atol=1e-7, rtol=1e-6)
    assert objective.value(x) == pytest.approx(float(objective.losses(x).mean()))


def test_the_hessian_of_the_mean_is_the_mean_of_the_samples() -> None:
    objective = small_network(8)
    v = torch.randn(objective.d, generator=generator(3), dtype=torch.float64)
    each = [objective.sample_hessian(objective.start, i).apply(v) for i in range(8)]
    torch.testing.assert_close(torch.stack(each).mean(dim=0), objective.hessian(objective.start).apply(v))
    with pytest.raises(IndexError):
        objective.sample_hessian(objective.start, 8)


def test_the_module_is_left_alone_and_frozen_weights_are_not_x() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double().eval()
    module[0].weight.requires_grad_(False)
    batch = (torch.randn(5, 4, generator=generator(), dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1]))
    objective = Objective(module, tasks.cross_entropy, [batch])
    before = {name: p.clone() for name, p in module.named_parameters()}
    assert objective.d == 3 + 6 + 2
    objective.descend(objective.start, 3, 1.0)
    objective.hessian(objective.start).apply(objective.start)
    for name, p in module.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is None


def test_it_refuses_what_would_not_be_per_sample() -> None:
    task = tasks.mlp_digits(3, 10, 0)
    with pytest.raises(ValueError, match=r"losses must have shape \(batch,\) = \[10\]; got \(\)"):
        Objective(task.module, lambda module, batch: tasks.cross_entropy(module, batch).mean(), task.batches)
    with pytest.raises(ValueError, match="module must be in eval mode"):
        Objective(nn.Sequential(nn.Linear(64, 10), nn.Dropout()).double(), task.losses, task.batches)
    with pytest.raises(ValueError, match="batches must hold at least one"):
        Objective(task.module, task.losses, [])


@pytest.mark.parametrize("power", [2, 4])
def test_the_common_bound_dominates_every_point(power: int) -> None:
    objective = small_network(10)
    points = [nearby(objective.start, 3.0, generator(seed)) for seed in range(2)]
    hessians = [full_hessian(objective, x) for x in points]
    values, vectors = torch.linalg.eigh(sum(torch.linalg.matrix_power(a, power) for a in hessians))
    bound = (vectors * values.clamp(min=0) ** (1 / power)) @ vectors.T
    for a in hessians:
        for sign in (1, -1):
            assert float(torch.linalg.eigvalsh(bound - sign * a)[0]) >= -1e-9
    operator = common([objective.hessian(x) for x in points], power)
    found = measure_spectrum(operator, generator(), Effort(search=30, probes=6, steps=8), root=power)
    assert contains(found.absolute_trace, float(bound.trace()))
    assert found.norm.low == pytest.approx(float(values[-1]) ** (1 / power), rel=1e-9)
    with pytest.raises(ValueError, match="power must be even; got 3"):
        common([operator], 3)
    with pytest.raises(ValueError, match="power must be even; got 3"):  # before anything is measured
        MeasureSettings(power=3)
    with pytest.raises(ValueError, match=r"root must be an integer with 2 <= root <= .*; got 1"):
        measure_spectrum(operator, generator(), root=1)


def test_differences_of_losses_measure_trace_and_frobenius_norm() -> None:
    objective = small_network()
    values = torch.linalg.eigvalsh(full_hessian(objective, objective.start))
    found = measure_forward(objective.losses, objective.start, 1e-3, 150, generator())
    assert contains(found.trace, float(values.sum()))
    assert contains(found.squared_frobenius, float((values**2).sum()))
    assert found.rank.low <= float(values.abs().sum() / values.abs().max())
    norms = objective.gradient_norms(objective.start).numpy()
    assert found.gradient_norms == pytest.approx(norms, rel=0.4)
    assert np.mean(found.gradient_norms**2) == pytest.approx(np.mean(norms**2), rel=0.2)
    file = found.problem_file("public")
    assert file.constants["smoothness"] >= float(values.abs().max())
    assert set(file.constants) == {"d", "r", "lipschitz", "smoothness", "gap", "loss_bound"}


def test_differences_that_see_nothing_are_refused() -> None:
    flat = Objective(
        Weights(np.zeros(3)).eval(), lambda module, batch: (batch @ module.x) * 0, [torch.ones(2, 3).double()]
    )
    with pytest.raises(PreconditionError, match="curvature must be visible"):
        measure_forward(flat.losses, flat.start, 1e-3, 2, generator())


def test_constants_are_those_of_the_network() -> None:
    objective = small_network(3)
    settings = MeasureSettings(
        points=2,
        path_steps=3,
        effort=EFFORT,
        sample_hessians=3,
        sample_effort=Effort(search=20, probes=2, steps=4),
    )
    found = measure(objective, generator(), data="public", settings=settings)
    end = objective.descend(objective.start, 3, 1 / found.points[0].spectrum.norm.high)
    assert found.points[1].value == pytest.approx(objective.value(end))
    constants = found.constants()
    largest = max(float(objective.gradient_norms(x).max()) for x in (objective.start, end))
    assert constants["lipschitz"] == pytest.approx(largest)
    exact = max(
        float(
            torch.linalg.matrix_norm(
                full_hessian(Objective(objective._call.module, tasks.cross_entropy, [objective._sample(i)]), x), 2
            )
        )
        for x in (objective.start, end)
        for i in range(3)
    )
    assert constants["smoothness"] == pytest.approx(exact, rel=1e-3)
    assert constants["smoothness"] >= exact * (1 - 1e-9)
    squares = sum(torch.linalg.matrix_power(full_hessian(objective, x), 2) for x in (objective.start, end))
    trace = float(torch.linalg.eigvalsh(squares).clamp(min=0).sqrt().sum())
    assert trace <= constants["r"] * constants["smoothness"] <= 1.3 * trace
    assert constants["gap"] == pytest.approx(objective.value(objective.start))
    assert any("estimates, not bounds" in caveat for caveat in found.caveats())


def test_private_data_is_refused_unless_the_claim_is_given_up() -> None:
    objective = small_network(4)
    with pytest.raises(PreconditionError, match="data must be public or synthetic"):
        measure(objective, generator(), data="private")
    quick = MeasureSettings(points=1, effort=Effort(search=4, probes=2, steps=2), sample_hessians=2)
    found = measure(objective, generator(), data="private", results_not_private=True, settings=quick)
    assert "private data" in found.problem_file().caveats[0]


def test_cross_entropies_are_minus_the_log_of_the_share_of_the_label() -> None:
    values = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]])
    losses = cross_entropy(nn.Identity(), (values, torch.tensor([1, 2])))
    share = math.exp(2.0) / (math.exp(1.0) + math.exp(2.0) + math.exp(0.5))
    torch.testing.assert_close(losses, torch.tensor([-math.log(share), math.log(3.0)]))


def test_the_network_on_digits_is_fixed_by_its_seed_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(1)
    torch.manual_seed(11)
    task = mlp_digits(4, 100, 1)
    assert torch.equal(torch.rand(1), expected)
    weights = torch.cat([p.reshape(-1) for p in task.module.parameters()])
    assert (weights.shape, weights.dtype) == ((75 * 4 + 10,), torch.float64)
    again = torch.cat([p.reshape(-1) for p in mlp_digits(4, 100, 1).module.parameters()])
    assert torch.equal(weights, again)
    ((features, labels),) = task.batches
    pixels, digit = datasets.digits(seed=1)
    assert torch.equal(features, torch.as_tensor(pixels[:100]))
    assert labels.tolist() == digit[:100].tolist()
    whole = mlp_digits(4, None, 1)
    assert sum(len(part) for _, part in whole.batches) == 1797
    assert not any(part.training for part in whole.module.modules())


def own_task(data: str, samples: int | None, seed: int) -> tasks.Task:
    """A user's own model for MODULE:FUNCTION: a small network whose data is not known to be public or synthetic."""
    task = tasks.mlp_digits(2, samples, seed)
    return tasks.Task(module=task.module, losses=task.losses, batches=task.batches)


def test_names_and_functions_of_ones_own() -> None:
    network = load("mlp-digits:3", "digits", 20, 0)
    assert sum(p.numel() for p in network.module.parameters()) == 75 * 3 + 10
    assert (network.known, [len(labels) for _, labels in network.batches]) == ("public", [20])
    mine = load("tests.curvature.test_measure:own_task", "somewhere", 20, 0)
    assert (mine.known, mine.least_loss) == ("", 0.0)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("mlp-digits", "digits", "model must be mlp-digits:WIDTH with an integer WIDTH; got 'mlp-digits'"),
        ("mlp-digits:0", "digits", "model must be an integer with 1 <= model"),
        ("mlp-digits:3", "toy", "data must be 'digits' for mlp-digits:3; got 'toy'"),
        ("tests.curvature.test_measure:absent", "x", "model must be one of .* has no attribute 'absent'"),
        ("resnet", "digits", "model must be one of mlp-digits:WIDTH, .*; got 'resnet'"),
    ],
)
def test_what_is_not_there_is_refused(model: str, data: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(model, data, None, 0)


Capture = pytest.CaptureFixture[str]

QUICK = [
    *("--samples", "40", "--points", "2", "--path-steps", "2", "--search", "10", "--probes", "3", "--steps", "4"),
    *("--sample-hessians", "2", "--directions", "4"),
]
BUDGET = ["--n", "10000", "--epsilon", "2", "--delta", "1e-6"]


def measured(tmp_path: Path, *words: str) -> Path:
    path = tmp_path / "problem.json"
    assert command.main([*words, "--out", str(path)]) == 0
    return path


def prescribed(capsys: Capture, *words: str) -> dict[str, Any]:
    assert params.main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_two_commands(tmp_path: Path, capsys: Capture) -> None:
    path = measured(tmp_path, "--model", "mlp-digits:3", "--data", "digits", *QUICK)
    content = json.loads(path.read_text())
    assert content["data"] == "public"
    assert content["problem"]["d"] == 75 * 3 + 10
    assert len(content["measurements"]["points"]) == 2
    assert [layer["shape"] for layer in content["measurements"]["layers"]] == [[3, 64], [10, 3]]
    for interval in ("norm", "trace", "absolute_trace", "effective_rank"):
        assert content["measurements"]["points"][0][interval]["kind"] in (
            "bound",
            "probability",
            "interval",
            "estimate",
        )
    for point in content["measurements"]["points"]:
        assert sum(point["density"]["weights"]) == pytest.approx(75 * 3 + 10)
        assert point["density"]["points"] == sorted(point["density"]["points"])
    assert 1 <= content["problem"]["sample_rank"] <= 75 * 3 + 10
    found = prescribed(capsys, "--problem", str(path), *BUDGET, "--result", "theorem-3")
    assert found["caveats"] == content["caveats"]
    for name, value in content["problem"].items():
        assert found["inputs"][name] == value
    flags = [word for k, v in content["problem"].items() for word in (f"--{k.replace('_', '-')}", repr(v))]
    by_hand = prescribed(capsys, *flags, *BUDGET, "--result", "theorem-3")
    assert by_hand["results"] == found["results"]
    assert by_hand["caveats"] == []


def test_ranks_of_layers_are_those_of_inputs_and_output_gradients() -> None:
    objective = small_network()
    first, last = layer_ranks(objective)
    assert (first["layer"], first["shape"], last["layer"], last["shape"]) == ("0", [2, 64], "2", [10, 2])
    features = torch.cat([features for features, _ in objective.batches]).numpy()
    labels = torch.cat([labels for _, labels in objective.batches]).numpy()
    weights = {name: part.detach().numpy() for name, part in objective.module.named_parameters()}
    hidden = np.tanh(features @ weights["0.weight"].T + weights["0.bias"])
    scores = hidden @ weights["2.weight"].T + weights["2.bias"]
    errors = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True) - np.eye(10)[labels]
    back = errors @ weights["2.weight"] * (1 - hidden**2)
    for layer, inputs, outputs in ((first, features, back), (last, hidden, errors)):
        for name, rows in (("input_rank", inputs), ("output_rank", outputs)):
            assert layer[name] == pytest.approx(np.sum(rows**2) / np.linalg.norm(rows, 2) ** 2)
    # layers that are not trained are left out
    objective.module[0].weight.requires_grad_(False)  # type: ignore[index, operator]
    assert [layer["layer"] for layer in layer_ranks(objective)] == ["2"]
    assert objective.module[2].weight.grad is None  # type: ignore[index]


def test_every_format_prints_the_caveats(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "p.json"
    path.write_text(ProblemFile(constants={"d": 50, "r": 2.0}, caveats=("measured nowhere",), data="private").as_json())
    for words in (["--format", "table"], ["--format", "csv"], ["--format", "latex"], ["--solve-for", "n"]):
        budget = ["--target", "3", *BUDGET[2:]] if "--solve-for" in words else BUDGET
        assert params.main(["--problem", str(path), *budget, "--result", "theorem-3", *words]) == 0
        out = capsys.readouterr().out
        assert "measured nowhere" in out, words
        assert "measured on private data" in out, words


def test_a_flag_replaces_the_file_and_says_so(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "p.json"
    path.write_text(ProblemFile(constants={"d": 50, "r": 2.0, "gap": 3.0}, caveats=(), data="public").as_json())
    found = prescribed(capsys, "--problem", str(path), *BUDGET, "--r", "4", "--result", "theorem-3")
    assert found["inputs"]["r"] == 4
    assert found["inputs"]["gap"] == 3
    assert found["caveats"] == ["r = 4 was given and replaces the file's 2"]
    solved = prescribed(
        capsys, "--problem", str(path), *BUDGET, "--result", "theorem-3", "--solve-for", "d", "--target", "5"
    )
    assert solved["results"]


def test_data_of_unknown_kind_must_be_declared(tmp_path: Path, capsys: Capture) -> None:
    words = ["--model", "tests.curvature.test_measure:own_task", "--data", "somewhere", *QUICK]
    with pytest.raises(SystemExit) as error:
        command.main(words)
    assert error.value.code == 2
    assert "must be declared --public or --synthetic" in capsys.readouterr().err
    assert json.loads(measured(tmp_path, *words, "--synthetic").read_text())["data"] == "synthetic"
    spent = json.loads(measured(tmp_path, *words, "--spend-no-privacy-claim").read_text())
    assert spent["data"] == "private"
    assert "the (epsilon, delta) below does not cover that" in spent["caveats"][0]
