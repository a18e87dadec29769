"""Tests that no check says 'held' beside an effect that it would have seen, and does not see when it is planted.

Each effect is taken from the words of the sound loop's own report, and planted in exactly that size.
"""

from collections.abc import Callable

import pytest

from dpzero_theory.audit.finding import HELD, VIOLATED
from dpzero_theory.audit.report import AuditReport
from tests.audit.small import audit, changed

_DRAWN = "source = np.random.default_rng(seed * 2**40 + {})"
"""The noise follows the seed, which is secret, so that the tests have no chance in them."""


def _number(text: str, after: str) -> float:
    return float(text.split(after)[1].split()[0])


def _normal(line: str) -> str:
    return line.replace("NORMAL", "source.standard_normal(total.size)")


PLANTED: dict[str, Callable[[str], list[str]]] = {
    "noise-size": lambda power: [f"std = {_number(power, 'less than ')} * settings['noise_multiplier'] * clip"],
    # Signs of which a share of one half plus this distance are positive: at 0 the distribution functions differ by it
    "noise-law": lambda power: [
        _normal(
            f"noise = std * np.abs(NORMAL)"
            f" * np.where(source.random(total.size) < 0.5 + {_number(power, 'functions ')}, 1, -1)"
        )
    ],
    "noise-independence": lambda power: [
        _normal(
            f"noise = std * NORMAL if not step else {power.split()[-1]} * kept[-1]"
            f" + std * np.sqrt(1 - {power.split()[-1]} ** 2) * NORMAL; kept.append(noise)"
        )
    ],
    "representable": lambda power: [
        _normal("noise = np.round(NORMAL / GRID) * GRID * std").replace(
            "GRID", f"2.0 ** -{int(power.split('2^-')[1].split()[0]) - 1}"
        )
    ],
    "sensitivity": lambda power: [
        f"each = scaled(gradients, clip * {_number(power, 'more than ') / _number(power, 'where ') * (1 + 1e-6)})"
    ],
    "batches": lambda power: [
        f"batch = np.flatnonzero(draw.random(len(data)) < size / n + {_number(power, 'within about ')} * (size < n))"
    ],
}
"""For each check whose report states a size, the changed line in which an effect of this size is planted."""


@pytest.fixture(scope="module")
def sound() -> AuditReport:
    return audit(changed(_DRAWN.format(1)), runs=60)


@pytest.mark.parametrize("name", list(PLANTED))
def test_the_effect_that_a_held_check_would_have_seen_is_seen(sound: AuditReport, name: str) -> None:
    assert sound[name].status == HELD, sound[name].says
    after = audit(changed(_DRAWN.format(2), *PLANTED[name](sound[name].power)), name, runs=60)[name]
    assert after.status == VIOLATED, f"{sound[name].power}: {after.says}"


def test_a_single_number_from_the_seed_is_seen() -> None:
    line = "noise = std * source.standard_normal(total.size)"
    line += "; noise[:1] = noise[0] if step != 1 else std * np.random.default_rng(seed + 77).normal()"
    loop = changed("draw = fresh()", line, view={"seed": "public"})
    assert "1 of " in audit(loop, "noise-from-seed")["noise-from-seed"].says


def test_every_effect_that_is_stated_is_planted(sound: AuditReport) -> None:
    stated = {entry.check.name for entry in sound.entries if entry.verdict.power}
    assert stated == PLANTED.keys()
