"""Tests of the certified accountant inside Opacus, by Opacus's registry of accountants."""

import math
import warnings

import pytest
import torch
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Importing Opacus gives warnings
    from opacus import PrivacyEngine
    from opacus.accountants import PRVAccountant, RDPAccountant, create_accountant
    from opacus.accountants.utils import get_noise_multiplier

from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.opacus import CertifiedAccountant
from tests.privacy.oracle import made, noise_for


def stepped(accountant, steps=120):
    for step in range(steps):
        accountant.step(noise_multiplier=1.2 if step < 100 else 2.0, sample_rate=0.04)
    return accountant


def test_it_is_created_by_its_name_and_answers_as_the_others_do():
    ours, prv, rdp = stepped(create_accountant("certified")), stepped(PRVAccountant()), stepped(RDPAccountant())
    assert ours.history == prv.history
    assert len(ours) == 120
    assert prv.get_epsilon(1e-5) * 0.98 < ours.get_epsilon(1e-5) < prv.get_epsilon(1e-5) < rdp.get_epsilon(1e-5)
    found = epsilon_of_history([made(1.2, 100, 0.04), made(2.0, 20, 0.04)], 1e-5)
    assert found.lower <= found.upper == ours.get_epsilon(1e-5) <= found.lower * (1 + 1.1e-4)


def test_a_step_outside_the_range_is_refused():
    for noise, rate in ((-1.0, 0.1), (1.0, 0.0), (1.0, 1.5), (math.nan, 0.1)):
        with pytest.raises(ValueError, match="must be"):
            CertifiedAccountant().step(noise_multiplier=noise, sample_rate=rate)


def test_its_calibration_is_ours():
    target = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 0.04, "steps": 200}
    found = get_noise_multiplier(accountant="certified", epsilon_tolerance=1e-4, **target)
    ours = noise_for(sampling="poisson", relation="add-remove", **target)
    assert ours.lower <= found <= ours.value * 1.001


def test_state_goes_through_a_checkpoint():
    first, second = stepped(CertifiedAccountant(), 110), CertifiedAccountant()
    second.load_state_dict(first.state_dict())
    assert second.get_epsilon(1e-5) == first.get_epsilon(1e-5)
    with pytest.raises(ValueError, match="certified"):
        RDPAccountant().load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("noise", "rate", "name"),
    [(-1.0, 0.1, "noise_multiplier"), (math.nan, 0.1, "noise_multiplier"), (0.0, 1.5, "sample_rate"),
     (1.0, 0.0, "sample_rate")],
)  # fmt: skip
def test_a_step_that_is_none_is_refused_before_it_is_counted(noise, rate, name):
    accountant = CertifiedAccountant()
    with pytest.raises(ValueError, match=f"^{name} must be"):
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    assert accountant.history == []


def test_a_step_without_noise_protects_nothing():
    accountant = stepped(CertifiedAccountant())
    accountant.step(noise_multiplier=0.0, sample_rate=0.04)
    assert accountant.get_epsilon(1e-5) == math.inf
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"^delta must be"):
            accountant.get_epsilon(delta)


@pytest.mark.filterwarnings("ignore")
def test_a_privacy_engine_trains_with_it():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,)))
    engine = PrivacyEngine(accountant="certified")
    model = nn.Linear(3, 2)
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=10),
        target_epsilon=2.0,
        target_delta=1e-3,
        epochs=2,
        max_grad_norm=1.0,
    )
    for _ in range(2):
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
    assert len(engine.accountant) == 8
    assert 1.98 < engine.get_epsilon(1e-3) <= 2.0
    assert engine.accountant.history == [(optimizer.noise_multiplier, 0.25, 8)]


def test_a_state_that_is_none_changes_nothing():
    ours = stepped(CertifiedAccountant())
    for wrong in (
        {"history": [], "mechanism": "rdp"},
        {"history": []},
        None,
    ):
        with pytest.raises(ValueError, match=r"state.?dict") as caught:
            ours.load_state_dict(wrong)
        assert "\n" not in str(caught.value)
        assert len(ours) == 120


def test_what_opacus_accountants_take_beside_delta_is_taken_or_refused():
    ours = stepped(CertifiedAccountant())
    plain = ours.get_epsilon(1e-5)
    for theirs in ({"eps_error": 0.01, "delta_error": 1e-9}, {"alphas": [2, 3]}, {"poisson": True}):
        assert ours.get_epsilon(delta=1e-5, **theirs) == plain
    assert ours.get_epsilon(1e-5, [2, 3]) == plain
    with pytest.raises(ValueError, match=r"^poisson must be True, the batches that are accounted; got False$"):
        ours.get_epsilon(1e-5, poisson=False)
