"""A release of every mechanism and sampling: what it is, or a refusal that names the field."""

import math

import pytest

from dpzero_theory.privacy.release import Release
from dpzero_theory.privacy.sampling import SAMPLINGS


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
    with pytest.raises(TypeError, match="sampling"):
        Release(1.0, 10, relation="add-remove", sample_rate=0.1)
    assert "full" in SAMPLINGS
