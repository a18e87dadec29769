"""Tests of what `dpzero_theory.privacy` offers: names that are functions of its modules, loaded when they are used."""

import subprocess
import sys

import pytest

import dpzero_theory.privacy as front
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier


def test_every_name_is_there_and_is_the_librarys() -> None:
    assert set(front.__all__) == set(front._HOMES)
    for name in front.__all__:
        assert getattr(front, name).__module__ == f"dpzero_theory.privacy.{front._HOMES[name].split('.')[0]}"
    assert front.calibrate is calibrate_noise_multiplier
    assert front.epsilon is epsilon_of_history
    with pytest.raises(AttributeError, match="no attribute 'sigma'"):
        _ = front.sigma


def test_the_example_of_its_docstring() -> None:
    assert front.__doc__ is not None
    code = "\n".join(line[4:] for line in front.__doc__.splitlines() if line.startswith("    "))
    names: dict[str, object] = {}
    exec(code, names)
    spent = names["spent"]
    assert isinstance(spent, front.Bracket)
    assert 1.3 < spent.value < 2


def test_importing_it_loads_nothing() -> None:
    code = "import sys, dpzero_theory.privacy; print([m for m in sys.modules if 'numpy' == m or 'accountant' in m])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
