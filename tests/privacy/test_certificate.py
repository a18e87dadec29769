"""Certificates: a checker that shares nothing with the accountant confirms them, and does not confirm altered ones."""

import ast
import json
import math
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scipy.integrate import quad
from scipy.special import ndtr

pytest.importorskip("flint")

from flint import arb

from dpzero_theory.privacy import checker
from dpzero_theory.privacy.certificate import privacy_certificate
from dpzero_theory.privacy.checker import Refused, confirm
from dpzero_theory.privacy.sampling import CyclicPoisson, FixedSize, FullBatch, Poisson
from dpzero_theory.privacy.step import History, Step

HISTORIES: dict[str, History] = {
    "full": Step(2.0, FullBatch(), "replace-one") * 10,
    "full, much noise": Step(300.0, FullBatch(), "add-remove") * 1000,
    "poisson": Step(1.0, Poisson(0.05), "add-remove") * 100,
    "poisson, a record replaced": Step(1.0, Poisson(1 / 64), "replace-one") * 300,
    "poisson, a record zeroed": Step(0.7, Poisson(0.01), "zero-out") * 100,
    "cyclic": Step(1.0, CyclicPoisson(1 / 64, 4), "add-remove", "discrete-gaussian", 3) * 1000,
    "laplace": Step(30.0, FullBatch(), "replace-one", "laplace") * 100,
    "laplace, sampled": Step(3.0, Poisson(0.05), "replace-one", "laplace") * 100,
    "laplace, add-remove": Step(3.0, Poisson(0.05), "add-remove", "laplace") * 300,
    "several parts": Step(2.0, Poisson(0.05), "add-remove") * 100 + Step(20.0, FullBatch(), "add-remove") * 7,
}


@pytest.mark.parametrize("delta", [1e-5, 1e-10])
@pytest.mark.parametrize("name", HISTORIES)
def test_a_certificate_is_confirmed_and_one_that_says_less_is_not(name: str, delta: float) -> None:
    """Its own method finds epsilon within a thousandth of the accountant's bracket, from both sides."""
    certificate = privacy_certificate(HISTORIES[name], delta)
    epsilon, stated, found = confirm(json.dumps(certificate))
    assert epsilon == certificate["statement"]["epsilon"] <= certificate["bracket"]["upper"] * 1.001 * (1 + 1e-5)
    assert found <= stated == delta
    certificate["statement"]["epsilon"] = certificate["bracket"]["lower"] * (1 - 1e-3)
    with pytest.raises(Refused, match=r"^delta at the stated epsilon is about "):
        confirm(json.dumps(certificate))


def test_a_calibrated_plan_can_be_certified_with_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpzero_theory.privacy.certificate._ROOM", 1e-5)
    certificate = privacy_certificate(HISTORIES["poisson"], 1e-5)
    assert confirm(json.dumps(certificate))[0] <= certificate["bracket"]["upper"] * (1 + 2e-5)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_checker_agrees_with_the_closed_form_of_full_batches(epsilon: float) -> None:
    """T releases with noise multiplier s are mu-GDP with mu = sqrt(T)/s (Dong, Roth and Su 2022)."""
    mu = math.sqrt(20) / 5
    exact = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    part = checker._read_part(privacy_certificate(Step(5.0, FullBatch(), "add-remove") * 20, 1e-5)["history"][0])
    for direction in part[1]:
        found = float(checker._bound([(part[0], direction)], arb(epsilon), exact, arb(2.0**-9)).upper())
        assert exact <= found <= exact * 1.001


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("a", [0.3, 0.95, 1.0, 1.02, 1.5])
def test_the_divergence_of_one_step_is_that_of_quadrature(relation: str, mechanism: str, a: float) -> None:
    s, q = 0.8, 0.3
    part = privacy_certificate(Step(s, Poisson(q), relation, mechanism) * 1, 1e-5)["history"][0]

    def density(x: float, centre: float) -> float:
        if mechanism == "laplace":
            return math.exp(-abs(x - centre) / s) / (2 * s)
        return math.exp(-(((x - centre) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))

    def mixed(x: float, centre: int) -> float:
        return (1 - q) * density(x, 0) + q * density(x, centre)

    other = -1 if relation == "replace-one" else 0
    pairs = [(1, other)] if relation == "replace-one" else [(1, 0), (0, 1)]
    for h, (one, two) in zip(checker._read_part(part)[1], pairs, strict=True):
        ends = [-40.0, *(i / 8 for i in range(-32, 41)), 40.0]
        pieces = [
            quad(
                lambda x, one=one, two=two: max(mixed(x, one) - a * mixed(x, two), 0.0), *piece, epsabs=1e-12, limit=200
            )[0]
            for piece in pairwise(ends)
        ]
        assert float(h(arb(a))) == pytest.approx(math.fsum(pieces), abs=1e-8)


def changed(certificate: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    copy = json.loads(json.dumps(certificate))
    *way, last = path.split(".")
    place: Any = copy
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return dict(copy)


ALTERED: list[tuple[str, object]] = [
    *(("statement.epsilon", value) for value in (2.9, 0, -1, 1e9, "3", True, [], float("nan"), float("inf"), 10**400)),
    *(("statement.delta", value) for value in (9e-6, 1e-40, 0.6, "1e-5", float("nan"))),
    ("statement.gdp", 1.0),
    *(("history.0.steps", value) for value in (103, 0, -5, 100.5, True, "100", 10**13)),
    *(("history.0.noise_multiplier", value) for value in (0.99, 0, 0.05, -1.0, "1", float("nan"), None)),
    *(("history.0.sample_rate", value) for value in (0.051, 0, 1.5, "0.05", None)),
    *(("history.0.sampling", value) for value in ("full", "fixed-size", "cyclic-poisson:0", "cyclic-poisson:x", 3)),
    *(("history.0.sampling", value) for value in ("cyclic-poisson:21", "random-allocation", "Poisson", "")),
    *(("history.0.relation", value) for value in ("replace-one", "add", None, 7)),
    *(("history.0.mechanism", value) for value in ("laplace:4", "none", "gaussian:4", None, {})),
    *(("history.0.coordinates", value) for value in (0, 1.5, "1")),
    ("history.0.clip", 1.0),
    *(("history", value) for value in ([], {}, "x", [[]], [1], None)),
    *((name, None) for name in ("format", "version", "statement", "bracket", "method")),
    ("format", "dpzero privacy certificate 2"),
    ("signature", "x"),
]


@pytest.fixture(scope="module")
def certificate() -> dict[str, Any]:
    """The certificate that is altered."""
    return privacy_certificate(HISTORIES["poisson"], 1e-5)


@pytest.mark.parametrize(("path", "value"), ALTERED)
def test_an_altered_certificate_is_refused_in_one_line(certificate: dict[str, Any], path: str, value: object) -> None:
    with pytest.raises(Refused) as refused:
        confirm(json.dumps(changed(certificate, path, value)))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"format": 1, "format": 1}', "[" * 100_000, "\x00"])
def test_what_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        confirm(text)


def test_the_checker_runs_alone(tmp_path: Path) -> None:
    """From a copy of its file outside the package: it imports python-flint and nothing else that is not Python's."""
    source = Path(checker.__file__)
    tree = ast.parse(source.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {name for name in modules if name and name.partition(".")[0] not in sys.stdlib_module_names} == {"flint"}
    assert len(source.read_text().splitlines()) <= 300
    shutil.copy(source, tmp_path / "alone.py")
    good = privacy_certificate(HISTORIES["poisson"], 1e-5)
    (tmp_path / "good.json").write_text(json.dumps(good))
    (tmp_path / "bad.json").write_text(json.dumps(changed(good, "statement.epsilon", 1.0)))

    def run(*names: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "alone.py", *names], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    one = run("good.json")
    assert (one.returncode, one.stderr) == (0, "")
    assert one.stdout.startswith("good.json: confirmed, delta(3.5")
    both = run("good.json", "bad.json", "missing.json")
    assert (both.returncode, both.stderr) == (1, "")
    assert [line.split(": ")[1].split(",")[0] for line in both.stdout.splitlines()] == [
        "confirmed",
        "NOT confirmed",
        "NOT confirmed",
    ]


@pytest.mark.parametrize(
    ("history", "named"),
    [
        (Step(1.0, FixedSize(0.1), "add-remove") * 3, "fixed-size"),
        (Step(1.0, FullBatch(), "add-remove", "discrete-gaussian:4") * 3, "discrete-gaussian:4"),
        (Step(1 / 16, FullBatch(), "add-remove") * 3, "noise_multiplier"),
        (History(), "1 to 100 parts"),
        (Step(1 / 15, FullBatch(), "add-remove") * 100, "epsilon of at most 1000"),
    ],
)
def test_what_the_checker_does_not_know_is_not_certified(history: History, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        privacy_certificate(history, 1e-5)


def test_what_is_written_at_the_ends_of_the_ranges_is_confirmed() -> None:
    """The writer refuses what the checker would: little noise and a large epsilon, a small epsilon, or many parts."""
    ends = [Step(1 / 15.9, FullBatch(), "replace-one") * 1, Step(1e6, FullBatch(), "add-remove") * 1]
    for history in (
        *ends,
        History([part for i in range(1, 101) for part in Step(float(i + 10), FullBatch(), "zero-out") * 1]),
    ):
        certificate = privacy_certificate(history, 1e-5)
        assert confirm(json.dumps(certificate))[0] == certificate["statement"]["epsilon"]


@pytest.mark.parametrize("delta", [1e-30, math.nextafter(1e-30, 1), 0.5, math.nextafter(0.5, 1)])
def test_certificate_and_checker_take_the_same_deltas(delta: float) -> None:
    """At the ends of the range what the one writes the other reads, and what the one refuses the other refuses."""
    history, good = HISTORIES["full"], privacy_certificate(HISTORIES["full"], 1e-5)
    try:
        found = privacy_certificate(history, delta)
    except ValueError:
        with pytest.raises(Refused, match=r"^delta must be"):
            confirm(json.dumps(changed(good, "statement.delta", delta)))
    else:
        assert confirm(json.dumps(found))[1] == delta


def test_more_coordinates_than_the_checker_counts_are_not_certified() -> None:
    with pytest.raises(ValueError, match=r"^coordinates must be"):
        privacy_certificate(Step(1e5, FullBatch(), "add-remove", coordinates=10**12 + 1) * 1, 1e-5)
