"""Tests of directions of a public shape: their law, how it is measured, and runs with one."""

import itertools
import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import dpzero_theory as dz
from dpzero_theory.optim.files.statement import statement
from dpzero_theory.optim.files.transcript import RUN, read
from dpzero_theory.optim.losses.shaping import public_shape
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.shape import Shape, text_of
from dpzero_theory.optim.verify import main
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.constants import constants
from tests.optim.small import Logistic, N, data, losses, plan, private, weights
from tests.optim.test_verify import forged

CPU = torch.device("cpu")
SHAPES = ((2,), (2, 3))
EXPONENTS = {"a": (np.array([1, -2]), np.zeros(0, int)), "b": (np.array([0, 2]), np.array([-1, 0, 1]))}
ROOT = 1.5 * 2.0 ** np.array([1, -2, -1, 0, 1, 1, 2, 3])
"""The diagonal of B^(1/2) by hand: the vector's entries, then the matrix's."""
TEXT = text_of(1.5, EXPONENTS, ["0" * 32])


def public(scales: Any = 1.0) -> TensorDataset:
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return TensorDataset(x * torch.as_tensor(scales), torch.where(x[:, 0] > 0, 1.0, -1.0).double())


STEEP = 4.0 ** torch.arange(-3, 3)
SHAPE = public_shape(Logistic(), losses, public(STEEP))


def every(law: str) -> np.ndarray:
    """Returns every direction of this law and shape, one in a row: all signs in the place of the random words."""
    directions, count = Directions(0, law, TEXT), 7 if law == "low-rank" else 8
    rows = []
    for signs in itertools.product((0, 1), repeat=count):
        word = sum(bit << place for place, bit in enumerate(signs))

        def words(number: int, parameter: int, start: int, needed: int, word: int = word) -> Any:
            # random signs are looked up by parameter, those of low-rank directions are dealt out from parameter 0
            return np.array([word if parameter == 0 else word >> 2], np.uint64)

        directions.words = words  # type: ignore[method-assign]
        directions._kept.clear()
        parts = [directions.sum([(0, directions.scale)], i, SHAPES, 0, 2, torch.float64, CPU) for i in range(2)]
        rows.append(torch.cat([part.flatten() for part in parts]).numpy())
    return np.array(rows)


@pytest.mark.parametrize("law", ["rademacher", "low-rank"])
def test_moments_of_all_signs_are_those_of_the_theorem_with_b(law: str) -> None:
    """With H_B = B^(1/2) H B^(1/2): the covariance is B, the norm tr(B) always, and the moment that bounds a step,
    E[(u'g)^2 u'Hu], at most the constant of section 6 or 15 at r_B = tr(H_B)/||H_B|| times g'Bg ||H_B||."""
    u, b = every(law), ROOT**2
    np.testing.assert_allclose(u.T @ u / len(u), np.diag(b), atol=1e-12)
    np.testing.assert_allclose(np.sum(u * u, axis=1), b.sum(), rtol=1e-14)
    rng, worst = np.random.default_rng(0), 0.0
    flat = np.array([0, 0, 1, 1, 1, 1, 1, 1.0])[:, None]
    for case in range(200):
        half = flat if case == 0 else rng.standard_normal((8, 1 + case % 8))  # H_B and B^(1/2) g, then H and g
        in_w, g_w = half @ half.T, half[:, 0] if case % 2 == 0 else rng.standard_normal(8)
        h, g, norm = in_w / ROOT[:, None] / ROOT, g_w / ROOT, float(np.linalg.norm(in_w, 2))
        moment = np.mean((u @ g) ** 2 * np.einsum("ij,jk,ik->i", u, h, u))
        rank = max(1.0, float(np.trace(in_w)) / norm)
        worst = max(worst, moment / (constants(1.0, 8, rank, law).spread ** 2 * norm * float(b @ g**2)))
    assert (0.85 if law == "rademacher" else 0.5) < worst <= 1


def test_any_block_of_a_direction_is_that_of_the_whole() -> None:
    directions = Directions(3, "gaussian", TEXT)
    whole = directions.coordinates(4, 1, 0, 6)
    for start, count in itertools.product(range(6), range(1, 7)):
        assert torch.equal(directions.coordinates(4, 1, start, min(count, 6 - start)), whole[start : start + count])
    factored, amounts = Directions(3, "low-rank", TEXT), [(k, math.sin(k + 1) * 10.0 ** (k % 5)) for k in range(16)]
    found = [factored.sum(order, 1, SHAPES, 0, 2, torch.float32, CPU) for order in (amounts, amounts[::-1])]
    assert torch.equal(*found)  # powers of 2 leave partial sums exact


def test_constants_for_a_shape_bound_those_of_the_problem_in_w() -> None:
    """Problem.shaped is Proposition 7 with what is known of B and H: their eigenvalues' ends."""
    shape, rng = Shape(TEXT, "rademacher"), np.random.default_rng(1)
    assert (shape.smallest, shape.largest) == (ROOT.min() ** 2, ROOT.max() ** 2)
    for _ in range(50):
        gradients, half = rng.standard_normal((5, 8)), rng.standard_normal((8, 3))
        h, lengths = half @ half.T, np.linalg.norm(gradients, axis=1)
        norm = float(np.linalg.norm(h, 2))
        base: dict[str, Any] = {"n": 5, "d": 8, "r": float(np.trace(h)) / norm, "smoothness": norm}
        found = Problem(**base, lipschitz=lengths.max(), pl=norm / 9).shaped(shape.smallest, shape.largest)
        in_w, steep = ROOT[:, None] * h * ROOT, np.linalg.norm(gradients * ROOT, axis=1)
        assert np.linalg.norm(in_w, 2) <= found.smoothness
        assert np.trace(in_w) <= found.r * found.smoothness
        assert steep.max() <= found.lipschitz
        assert found.pl == pytest.approx(norm / 9 * shape.smallest)
        moment = Problem(**base, gradient_moment=(3.0, float(np.mean(lengths**3)))).shaped(1.0, shape.largest)
        assert np.mean(steep**3) <= moment.gradient_moment[1]  # type: ignore[index]
        assert moment.gradient_moment[1] == pytest.approx(np.mean((ROOT.max() * lengths) ** 3))  # type: ignore[index]
        excess = Problem(**base, mean_excess=(2.0, float(np.mean(np.maximum(lengths - 2, 0))))).shaped(1, shape.largest)
        level, most = excess.mean_excess  # type: ignore[misc]
        assert np.mean(np.maximum(steep - level, 0)) <= most
    with pytest.raises(ValueError, match="smallest must be"):
        PROBLEM.shaped(2.0, 1.0)


PROBLEM = Problem(n=N, d=6, r=2.0)


def test_a_certificate_counts_the_shape() -> None:
    shape = Shape(SHAPE, "rademacher")
    in_w = PROBLEM.shaped(shape.smallest, shape.largest)
    prescribed = dz.prescribe(in_w, epsilon=2, delta=1e-6, direction="rademacher", max_steps=50)
    found = dz.certify(PROBLEM, replace(prescribed.plan(), shape=SHAPE))
    assert found.bound == pytest.approx(prescribed.bound, rel=1e-6)
    assert dz.certify(PROBLEM, prescribed.plan()).bound != pytest.approx(prescribed.bound, rel=0.1)


def net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def classified(module: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(module(batch[0]), (batch[1] > 0).long(), reduction="none")


@pytest.mark.parametrize("law", ["rademacher", "gaussian", "low-rank", "low-rank:3"])
def test_shaped_directions_are_the_plain_ones_times_the_shape(law: str) -> None:
    module = net()
    shape = Shape(text := public_shape(module, classified, public(STEEP)), law)
    plain, shaped = (Weights(net(), Directions(9, law, given)) for given in ("", text))
    before = shaped.values()
    for one in (plain, shaped):
        one.move_([(3, 1.0), (4, -0.5)])
    for name, start in before.items():
        rows, columns = (torch.from_numpy(2.0**part) for part in shape.exponents[name])
        factor = shape.scale * (rows[:, None] * columns if len(columns) else rows)
        moved = (plain.values()[name] - start) * factor
        torch.testing.assert_close(shaped.values()[name] - start, moved, rtol=1e-12, atol=1e-13)
    x, y = public(STEEP)[:7]
    (at,) = shaped.evaluated([(8, 1e-3)], lambda m: classified(m, (x, y)))
    shaped.move_([(8, 1e-3)])
    with torch.no_grad():
        torch.testing.assert_close(at, classified(shaped.module, (x, y)), rtol=1e-12, atol=1e-13)
    (slope,) = plain.evaluated([(5, None)], lambda m: classified(m, (x, y)))
    assert slope.shape == (7,)


def test_the_shape_goes_half_of_the_way_and_keeps_the_mean_square_of_differences() -> None:
    module, found = net().train(), Shape(public_shape(net(), classified, public(STEEP)), "gaussian")
    squares = [torch.zeros_like(p) for p in module.parameters()]
    for i in range(60):
        loss = classified(module, [part[i : i + 1] for part in public(STEEP).tensors]).sum()
        for total, g in zip(squares, torch.autograd.grad(loss, list(module.parameters())), strict=True):
            total += g.square() / 60
    mean = sum(float(s.sum()) for s in squares) / sum(s.numel() for s in squares)
    shaped = 0.0
    for (name, _), total in zip(module.named_parameters(), squares, strict=True):
        rows, columns = found.exponents[name]
        matrix = total if total.ndim > 1 else total[:, None]
        columns = columns if len(columns) else np.zeros(1, int)
        for exponents, c in ((rows, matrix.mean(1) / mean), (columns, matrix.mean(0) / matrix.mean())):
            wanted = -np.log2(c.numpy() + 0.01) / 4
            assert np.abs(exponents - wanted).max() <= 0.5 + 1e-9
        shaped += float((torch.from_numpy(found.scale**2 * 4.0 ** (rows[:, None] + columns)) * matrix).sum())
    assert shaped == pytest.approx(sum(float(s.sum()) for s in squares), rel=1e-12)
    assert max(found.exponents["0.weight"][1]) - min(found.exponents["0.weight"][1]) >= 2
    module.train()
    public_shape(module, classified, public())
    assert all(part.training for part in module.modules())
    with pytest.raises(ValueError, match="losses must have derivatives"):
        public_shape(module, lambda m, b: (m(b[0]).argmax(1) != (b[1] > 0)).double(), public())
    with pytest.raises(ValueError, match="must be finite and not all 0; their mean square is nan"):
        public_shape(module, classified, public(math.nan))


@pytest.mark.parametrize("law", ["rademacher", "low-rank"])
def test_a_run_is_resumed_replayed_and_verified(tmp_path: Path, law: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, folder = Logistic(), tmp_path / "run"
    torch.save(dict(module.named_parameters()), tmp_path / "initial.pt")

    def begun(**changes: Any) -> Run:
        return private(folder, changes.pop("module", module), direction=law, **{"shape": SHAPE, **changes})

    run = begun(isolation="exact")
    for _ in range(3):
        run.step()
    state = run.state_dict()
    run.close()
    with pytest.raises(ValueError, match="shape must be that of the run that is resumed"):
        begun(resume=True, shape="", isolation="exact")
    again = Logistic()
    run = begun(resume=True, module=again, isolation="exact")
    run.load_state_dict(state)
    run.step()
    torch.save(run.state_dict(), tmp_path / "final.pt")
    run.close()
    replayed = read(folder).replayed(Logistic())
    assert torch.equal(replayed.parameters[0], weights(run))
    with_files = [str(folder), "--initial", str(tmp_path / "initial.pt"), "--final", str(tmp_path / "final.pt")]
    assert main(with_files) == 0
    assert "of the public shape with digest" in statement(read(folder)).facts["directions"]
    assert "measured on public records" in statement(read(folder)).assumed[-1]
    # a changed shape is told by the file's hash, and by the replay if every hash is computed again
    held, plan_of = (folder / RUN).read_bytes(), read(folder).header.plan
    changed = json.loads(SHAPE)
    changed["exponents"]["weight"] = changed["exponents"]["weight"][::-1]
    with closing(sqlite3.connect(folder / RUN)) as db, db:
        db.execute("UPDATE header SET begun = replace(begun, ?, ?)", (letters(SHAPE), letters(json.dumps(changed))))
    capsys.readouterr()
    assert main(with_files) == 1
    assert "its header does not match its hash" in capsys.readouterr().err
    (folder / RUN).write_bytes(held)
    released = np.array([record.sums for record in read(folder).records], dtype=np.int64)
    forged(folder, {"plan": {"shape": json.dumps(changed)}}, {}, released)
    assert read(folder).header.plan == replace(plan_of, shape=json.dumps(changed))
    assert main(with_files) == 1
    assert "final weights: not those of the replay of the first 4 steps" in capsys.readouterr().err


def letters(shape: str) -> str:
    return str(json.loads(shape)["exponents"]["weight"])


def test_records_that_are_private_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    mine = public_shape(Logistic(), losses, TensorDataset(*(part[30:] for part in data().tensors)))
    with pytest.raises(ValueError, match="shape must be measured on public records; got one of which data holds 10 "):
        private(tmp_path / "run", shape=mine)
    assert not (tmp_path / "run").exists()
    relabelled = TensorDataset(data().tensors[0][:5], torch.ones(5, dtype=torch.float64))
    with pytest.raises(ValueError, match="holds 5 records too"):
        private(tmp_path / "run", shape=public_shape(Logistic(), losses, relabelled))


def test_what_is_no_shape_of_the_plan_or_the_weights_is_refused(tmp_path: Path) -> None:
    for given in ("public", "{}", '{"scale": 1.0, "exponents": {"weight": "m~"}, "records": []}', 3):
        with pytest.raises(ValueError, match="shape must be what public_shape returned; got"):
            plan(shape=given)
    with pytest.raises(ValueError, match="or low-rank with a shape; got sphere"):
        plan(shape=SHAPE, direction="sphere")
    with pytest.raises(ValueError, match="shape must be of the weights that are trained"):
        private(tmp_path / "run", shape=TEXT)
    assert Plan.from_settings(json.loads(json.dumps(plan(shape=SHAPE).settings))) == plan(shape=SHAPE)
