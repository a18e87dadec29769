"""A release with every mechanism and sampling is what it says, or is refused with the field's name."""

import math

import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS
from dpzero_theory.privacy.step import step_of
from tests.privacy.oracle import made

GOOD = {"sampling": "poisson", "relation": "add-remove", "sample_rate": 0.1}
NAMES = [name for name, kind in SAMPLINGS.items() if not kind.arguments.startswith(":")]
FAMILY = r"^mechanism must be discrete-laplace:M, M >= 1 integers to a clip; got "


@pytest.mark.parametrize(
    ("noise", "steps", "change", "named"),
    [
        (1.0, 1, {"sampling": "shuffle"}, "sampling"),
        (1.0, 1, {"sampling": None}, "sampling"),
        (1.0, 1, {"relation": "swap"}, "relation"),
        (1.0, 1, {"sample_rate": 0.0}, "sample_rate"),
        (1.0, 1, {"sample_rate": None}, "sample_rate"),
        (1.0, 1, {"sample_rate": 1.5}, "sample_rate"),
        (1.0, 1, {"sampling": "full"}, "sample_rate"),
        (0.0, 1, {}, "noise_multiplier"),
        (math.nan, 1, {}, "noise_multiplier"),
        (1.0, 2.5, {}, "steps"),
        *(
            (
                1.0,
                1,
                {"mechanism": name},
                "^mechanism must be one of gaussian, discrete-gaussian, laplace, discrete-lap",
            )
            for name in ("", "staircase", "Gaussian", "laplace ", None, 3)
        ),
        *((1.0, 1, {"mechanism": f"discrete-laplace{word}"}, FAMILY) for word in ("", ":0", ":1.5", ":")),
        *(
            (1.0, 1, {"mechanism": name, "coordinates": count}, "^coordinates must be")
            for name, most in (("laplace", 1), ("discrete-gaussian", 2**32), ("gaussian", 10**18))
            for count in (most + 1, 0, 1.5, None)
        ),
    ],
)
def test_a_field_outside_its_range_is_named(noise, steps, change, named):
    with pytest.raises(ValueError, match=named) as caught:
        step_of(noise, steps, **(GOOD | change))
    assert "\n" not in str(caught.value)


def test_sampling_has_no_default():
    with pytest.raises(ValueError, match="sampling"):
        step_of(1.0, 10, relation="add-remove", sample_rate=0.1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("sampling", [*NAMES, "truncated-poisson:8/100", "cyclic-poisson:4"])
def test_a_release_of_every_mechanism_with_every_sampling_is_accounted_or_refused(mechanism, sampling):
    """None is taken for another."""
    words = {"sampling": sampling, "mechanism": mechanism, "sample_rate": 1.0 if sampling == "full" else 0.1}
    relation, named = "add-remove", None
    if mechanism == "laplace" and sampling not in ("full", "poisson"):
        named = f"sampling must be one of full, poisson with mechanism laplace; got '{sampling}'$"
    elif sampling in ("fixed-order", "shuffled"):
        relation, named = "zero-out", f"relation must be replace-one or zero-out with sampling {sampling} "
    if named:
        with pytest.raises(ValueError, match=f"^{named}"):
            step_of(3.0, 4, relation="add-remove", **words)
        if relation == "add-remove":
            return
    release = step_of(3.0, 4, relation=relation, **words)
    assert (release.mechanism, release.sampling.word, release.steps) == (mechanism, sampling, 4)
    found = delta_of_history(release, 0.1)
    assert 0 <= found.lower <= found.upper < 1
    assert found.lower > 0 or "shuffled" in sampling


def test_the_fault_that_was():
    """A Laplace release of epsilon 1 is not accounted for as a Gaussian one, which would cost 2.9 and more."""
    laplace = made(4.0, 2, relation="replace-one", mechanism="laplace")
    assert epsilon_of_history(laplace, 0.0).upper == pytest.approx(1.0, rel=1e-11)
    assert epsilon_of_history(laplace, 1e-5).upper == pytest.approx(1.0, rel=1e-4)
    assert epsilon_of_history(made(4.0, 2, relation="replace-one"), 1e-5).lower > 2.5


@pytest.mark.parametrize("mechanism", ["gaussian", "discrete-gaussian"])
def test_more_coordinates_of_a_clipped_vector_cost_a_gaussian_release_nothing(mechanism):
    """The clip is of the norm. The discrete law's ratio to the continuous one grows by 2e-34 for each."""
    one, many = (epsilon_of_history(made(2.0, 5, mechanism=mechanism, coordinates=k), 1e-5) for k in (1, 1000))
    assert many.upper == pytest.approx(one.upper, rel=1e-9)


def test_fields_are_what_they_are_and_with_noise_changes_the_noise_alone():
    release = made(2, 5.0, relation="replace-one")
    assert (release.noise, release.steps, release.sampling.sample_rate) == (2.0, 5, 1.0)
    assert isinstance(release.noise, float)
    assert isinstance(release.steps, int)
    assert release.relation is Relation.REPLACE_ONE
    assert release.relation.sensitivity == 2
    words = {"mechanism": "discrete-gaussian", "coordinates": 3}
    release, other = made(2.0, 5, 0.1, **words), made(2.0, 5, 0.1, **words).with_noise(4.0)
    assert other == made(4.0, 5, 0.1, **words)
    assert other.cost() != release.cost()
