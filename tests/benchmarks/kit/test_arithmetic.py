"""Tests of the name of a process's arithmetic, which tells apart the numerical kernels that its libraries chose."""

import json
import os
import platform
import subprocess
import sys

import pytest

from benchmarks.kit import arithmetic

ASKED = "import json; from benchmarks.kit.arithmetic import arithmetic; print(json.dumps(arithmetic()))"
SOME = {"OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2"}


def named(**environment: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASKED],
        env={**os.environ, **SOME, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels are chosen by the names of x86 processors")
def test_another_processors_kernels_have_another_name() -> None:
    """A variable that changes the kernels of one library changes the name of that library's arithmetic, and no other.

    The libraries are numpy and scipy, with their BLAS, and torch.
    """
    some = named()
    assert some.keys() == arithmetic.COMMITTED.keys()
    for changed, names in (
        ({"OPENBLAS_CORETYPE": "Prescott"}, {"numpy", "scipy"}),
        ({"ATEN_CPU_CAPABILITY": "default"}, {"torch"}),
    ):
        found = named(**changed)
        assert {name for name in some if found[name] != some[name]} == names


def test_the_libraries_that_differ_from_the_rows_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = arithmetic.arithmetic()
    monkeypatch.setattr(arithmetic, "COMMITTED", here)
    assert arithmetic.others() == []
    monkeypatch.setattr(arithmetic, "COMMITTED", {**here, "numpy": "another"})
    assert arithmetic.others() == ["numpy"]
