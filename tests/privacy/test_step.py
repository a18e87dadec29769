"""Tests of a release with every mechanism and sampling: it is what it says, or is refused with the field's name."""

import math

import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS
from dpzero_theory.privacy.step import Release


def test_groups_name_what_is_wrong():
    good = {"sampling": "poisson", "relation": "add-remove", "sample_rate": 0.1}
    for change, name in [
        ({"sampling": "shuffle"}, "sampling"),
        ({"sampling": None}, "sampling"),
        ({"relation": "swap"}, "relation"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"sample_rate": None}, "sample_rate"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"sampling": "full"}, "sample_rate"),
    ]:
        with pytest.raises(ValueError, match=name):
            Release(1.0, 10, **(good | change))
    for noise, steps, name in [(0.0, 1, "noise_multiplier"), (math.nan, 1, "noise_multiplier"), (1.0, 2.5, "steps")]:
        with pytest.raises(ValueError, match=name):
            Release(noise, steps, **good)


def test_sampling_has_no_default():
    with pytest.raises(ValueError, match="sampling"):
        Release(1.0, 10, relation="add-remove", sample_rate=0.1)
    assert "full" in SAMPLINGS


NAMES = [name for name, kind in SAMPLINGS.items() if not kind.arguments.startswith(":")]
GOOD = {"sampling": "poisson", "relation": "add-remove", "sample_rate": 0.1}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("sampling", [*NAMES, "truncated-poisson:8/100", "cyclic-poisson:4"])
def test_a_release_of_every_mechanism_with_every_sampling_is_accounted_or_refused(mechanism, sampling):
    """A release of every mechanism with every sampling is accounted for or refused; none is taken for another."""
    changes = {"sampling": sampling, "mechanism": mechanism, "sample_rate": 1.0 if sampling == "full" else 0.1}
    if mechanism == "laplace" and sampling not in ("full", "poisson"):
        message = f"sampling must be one of full, poisson with mechanism laplace; got '{sampling}'"
        with pytest.raises(ValueError, match=f"^{message}$"):
            Release(3.0, 4, **(GOOD | changes))
        return
    if sampling in ("fixed-order", "shuffled"):
        with pytest.raises(ValueError, match=f"^relation must be replace-one or zero-out with sampling {sampling} "):
            Release(3.0, 4, **(GOOD | changes))
        changes["relation"] = "zero-out"
    release = Release(3.0, 4, **(GOOD | changes))
    assert (release.mechanism, release.sampling, release.steps) == (mechanism, sampling, 4)
    found = delta_of_history([release], 0.1)
    assert 0 <= found.lower <= found.upper < 1
    assert found.lower > 0 or "shuffled" in sampling


def test_the_fault_that_was():
    """A Laplace release of epsilon 1 is not accounted for as a Gaussian one, which would cost 2.9 and more."""
    release = Release(4.0, 2, sampling="full", relation="replace-one", mechanism="laplace")
    assert epsilon_of_history([release], 0.0).upper == pytest.approx(1.0, rel=1e-11)
    assert epsilon_of_history([release], 1e-5).upper == pytest.approx(1.0, rel=1e-4)
    gaussian = Release(4.0, 2, sampling="full", relation="replace-one")
    assert epsilon_of_history([gaussian], 1e-5).lower > 2.5


@pytest.mark.parametrize("value", ["", "staircase", "Gaussian", "laplace ", None, 3])
def test_an_unknown_mechanism_is_refused_by_name(value):
    names = "gaussian, discrete-gaussian, laplace, discrete-laplace"
    with pytest.raises(ValueError, match=rf"^mechanism must be one of {names}; got ") as e:
        Release(1.0, 1, **GOOD, mechanism=value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "value", ["discrete-laplace", "discrete-laplace:0", "discrete-laplace:1.5", "discrete-laplace:"]
)
def test_a_coarse_lattice_is_named_by_its_integers(value):
    with pytest.raises(ValueError, match=r"^mechanism must be discrete-laplace:M, M >= 1 integers to a clip; got "):
        Release(1.0, 1, **GOOD, mechanism=value)


@pytest.mark.parametrize(("mechanism", "most"), [("laplace", 1), ("discrete-gaussian", 2**32), ("gaussian", 10**18)])
def test_coordinates_are_as_many_as_the_mechanism_is_accounted_for(mechanism, most):
    assert Release(1.0, 1, **GOOD, mechanism=mechanism, coordinates=most).coordinates == most
    with pytest.raises(ValueError, match="coordinates must be"):
        Release(1.0, 1, **GOOD, mechanism=mechanism, coordinates=most + 1)
    for bad in (0, 1.5, None):
        with pytest.raises(ValueError, match="coordinates must be an integer"):
            Release(1.0, 1, **GOOD, mechanism=mechanism, coordinates=bad)


def test_more_coordinates_of_a_clipped_vector_cost_a_gaussian_release_nothing():
    """More coordinates of a clipped vector cost a Gaussian release nothing, since the clip is of the norm.

    The discrete law's ratio to the continuous one grows with their number, by 2e-34 each.
    """
    for mechanism in ("gaussian", "discrete-gaussian"):
        one, many = (
            Release(2.0, 5, sampling="full", relation="add-remove", mechanism=mechanism, coordinates=k)
            for k in (1, 1000)
        )
        assert epsilon_of_history([many], 1e-5).upper == pytest.approx(epsilon_of_history([one], 1e-5).upper, rel=1e-9)


def test_with_noise_changes_the_noise_alone():
    release = Release(2.0, 5, **GOOD, mechanism="discrete-gaussian", coordinates=3)
    other = release.with_noise(4.0)
    assert other == Release(4.0, 5, **GOOD, mechanism="discrete-gaussian", coordinates=3)
    assert other.cost != release.cost
    assert release == Release(2.0, 5, **GOOD, mechanism="discrete-gaussian", coordinates=3)


def test_numbers_are_stored_as_what_they_are():
    release = Release(2, 5.0, sampling="full", relation="replace-one")
    assert (release.noise_multiplier, release.steps, release.sample_rate) == (2.0, 5, 1.0)
    assert isinstance(release.noise_multiplier, float)
    assert isinstance(release.steps, int)
    assert release.relation is Relation.REPLACE_ONE
    assert release.sensitivity == 2
