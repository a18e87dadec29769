"""Tests of what `import dpzero_theory as dz` offers: few names, loaded when they are used."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import dpzero_theory as dz
from dpzero_theory.__main__ import main
from tests.optim.small import Logistic, losses


def fresh(program: str) -> str:
    """Returns what a program prints in a new interpreter."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_few_names_and_every_one_is_there() -> None:
    assert dir(dz) == sorted({*dz.__all__, "__version__"})
    assert len(dir(dz)) <= 30
    for name in dz.__all__:
        assert getattr(dz, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        dz.nothing  # noqa: B018


def test_names_come_when_they_are_used() -> None:
    """The package's names are loaded when they are used.

    Listing them imports neither torch nor numpy, accounting imports no torch, and `audit` is both a function and a
    package.
    """
    assert fresh("import dpzero_theory, sys; dir(dpzero_theory); print('numpy' in sys.modules)") == "False"
    step = "dz.Step(noise=9., sampling=dz.Poisson(.1), relation='zero-out') * 9"
    said = fresh(f"import dpzero_theory as dz, sys; print(dz.epsilon({step}, 1e-5).upper < 1, 'torch' in sys.modules)")
    assert said == "True False"
    for first in ("import dpzero_theory.audit", "dz.audit", "from dpzero_theory.audit.claim import Claim"):
        assert fresh(f"import dpzero_theory as dz; {first}; print(callable(dz.audit), dz.audit.__name__)") == (
            "True dpzero_theory.audit"
        )


def test_types_are_told_the_same_names() -> None:
    source = inspect.getsource(dz).partition("if TYPE_CHECKING:")[2].partition("__version__")[0]
    for name in dz.__all__:
        assert name in source or name == "audit", name


def test_histories_add_and_multiply() -> None:
    a = dz.Step(noise=12.5, sampling=dz.Poisson(1 / 16), relation="add-remove")
    b = dz.Step(noise=20, sampling=dz.FullBatch(), relation="add-remove")
    both = a * 100 + 50 * b
    assert [(part.noise, part.steps) for part in both] == [(12.5, 100), (20, 50)]
    assert both.steps == 150
    assert (both * 2).steps == 300
    assert [part.steps for part in a * 10 + a * 5 + b] == [15, 1]
    assert a + a == a * 2
    assert dz.epsilon([a * 60, a * 40, b * 50], 1e-5) == dz.epsilon(both, 1e-5)
    assert dz.delta(a, 0.1) == dz.delta(a * 1, 0.1)
    with pytest.raises(ValueError, match=r"^steps must be an integer with 1 <= steps .*; got 0$"):
        a * 0
    with pytest.raises(ValueError, match=r"^history must be steps, such as step \* 1000, or .*; got 3$"):
        dz.epsilon(3, 1e-5)  # type: ignore[arg-type]


def test_a_schedule_begins_anew_with_each_part() -> None:
    """In a history with several parts, a schedule of batches begins anew with each part.

    With two groups taking turns, a record is in one of steps 1 and 2 of one run, but may be in step 1 of both of two
    runs.
    """
    step = dz.Step(noise=1, sampling=dz.CyclicPoisson(0.5, groups=2), relation="add-remove")
    whole = dz.Step(noise=1, sampling=dz.FullBatch(), relation="add-remove")
    assert dz.epsilon(step * 2, 1e-5).upper == pytest.approx(dz.epsilon(whole, 1e-5).upper)
    for two in (step * 1 + step * 1, (step * 1) * 2, [step, step]):
        assert dz.epsilon(two, 1e-5).upper == pytest.approx(dz.epsilon(whole * 2, 1e-5).upper)


def test_calibrated_noise_costs_the_target() -> None:
    drawn = dz.RandomAllocation(1 / 16)
    found = dz.calibrate(epsilon=2, delta=1e-5, steps=32, sampling=drawn, relation="replace-one")
    spent = dz.epsilon(dz.Step(found.value, drawn, relation="replace-one") * 32, 1e-5)
    assert 1.99 < spent.upper <= 2
    for changes, said in [
        ({"sampling": "poisson"}, r"sampling must be a value such as Poisson\(1/16\) or FullBatch\(\); got 'poisson'"),
        ({"epsilon": -1}, r"epsilon must be .* got -1"),
        ({"relation": "swap"}, r"relation must be one of replace-one, add-remove, zero-out; got 'swap'"),
    ]:
        good = {"epsilon": 2, "delta": 1e-5, "steps": 32, "sampling": drawn, "relation": "add-remove"}
        with pytest.raises(ValueError, match=f"^{said}$"):
            dz.calibrate(**{**good, **changes})  # type: ignore[arg-type]


def test_from_a_problem_to_a_verified_run(tmp_path) -> None:  # type: ignore[no-untyped-def]
    problem = dz.Problem(n=40, d=6, r=2)
    prescribed = dz.prescribe(problem, epsilon=8, delta=1e-4, max_steps=5)
    plan = prescribed.plan()
    assert dz.certify(problem, prescribed).bound == pytest.approx(prescribed.bound, rel=1e-9)
    assert dz.certify(problem, plan).bound == pytest.approx(prescribed.bound, rel=1e-6)
    rng = np.random.default_rng(1)
    data = TensorDataset(torch.tensor(rng.normal(size=(40, 6)) / 9), torch.tensor(rng.integers(2, size=40)).double())
    run = dz.make_private(Logistic(), losses, data, plan, target_delta=1e-4, folder=tmp_path / "run", isolation="exact")
    run.run()
    run.close()
    assert not dz.verify(tmp_path / "run").fault
    with pytest.raises(ValueError, match=r"^problem must have the plan's n = 40; got 41$"):
        dz.certify(dz.Problem(n=41, d=6, r=2), plan)


def test_the_package_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Every module of the library that runs as a command is listed, and nothing else."""
    assert main() == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]}
    root = Path(dz.__file__).parent
    runs = (path.relative_to(root) for path in root.rglob("*.py") if '__name__ == "__main__"' in path.read_text())
    names = {".".join(path.with_suffix("").parts).removesuffix("__main__").rstrip(".") for path in runs}
    assert listed == names - {""}


def test_what_programs_import_stands_one_step_behind() -> None:
    optim = importlib.import_module("dpzero_theory.optim")
    for name in optim.__all__:
        if "SFT" in name or "DPO" in name:
            continue  # these need trl, which the tests of the trainers import
        assert getattr(optim, name).__name__ == name
