"""What other packages do where a good guess about them is wrong, and that ours does the right thing there.

Each test names the release of the package that it was seen in, and is skipped at another one.
"""

import math
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import dpzero_theory as dz

STEPS = dz.Step(noise=1.0, sampling=dz.Poisson(0.01), relation="add-remove") * 1000


def needs(**releases: str) -> None:
    """Skips the test unless these releases are installed. releases: by package, with _ for -."""
    for package, release in releases.items():
        try:
            found = version(package.replace("_", "-"))
        except PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
        if found.split("+")[0] != release:
            pytest.skip(f"seen with {package} {release}, and this is {found}")


def test_torch_takes_32_bits_of_a_seed_on_a_cpu() -> None:
    """So `synthetic.lanes` says; answers for rewards have streams of 128 bits (tests/optim/losses/test_rewards.py)."""
    needs(torch="2.13.0")
    one, other = (torch.Generator().manual_seed(seed) for seed in (5, 2**32 + 5))
    assert one.initial_seed() != other.initial_seed()
    assert torch.equal(torch.randn(20, generator=one), torch.randn(20, generator=other))
    # two of 10^5 streams coincide with probability 0.69
    assert -math.expm1(-(10**5) * (10**5 - 1) / 2**33) == pytest.approx(0.69, abs=0.01)


@pytest.mark.parametrize(("delta", "theirs"), [(1e-13, 4.2509), (1e-14, 8.5860), (1e-15, math.inf)])
def test_epsilon_at_a_tiny_delta_goes_on_where_that_of_dp_accounting_doubles(delta: float, theirs: float) -> None:
    needs(dp_accounting="0.6.0")
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 1000)
    assert PLDAccountant().compose(event).get_epsilon(delta) == pytest.approx(theirs, abs=1e-3)
    found = [dz.epsilon(STEPS, delta * 10**k) for k in (2, 1, 0)]
    growth = np.diff([bracket.upper for bracket in found])
    assert all(0.28 < step < 0.36 for step in growth)  # what a decade costs: a little more each time
    assert all(bracket.upper - bracket.lower < 1e-3 for bracket in found)
    assert found[-1].lower < theirs


def test_a_cap_that_is_seldom_reached_costs_next_to_nothing() -> None:
    """opake 0.16.1 states 2.2005 here (findings/opake_truncated_batches.sh)."""
    capped = dz.Step(noise=1.0, sampling=dz.TruncatedPoisson(0.01, largest=150, n=10_000), relation="add-remove") * 1000
    found = dz.epsilon(capped, 1e-5)
    assert found.upper == pytest.approx(1.83042, abs=2e-4)
    assert found.lower >= dz.epsilon(STEPS, 1e-5).lower - 1e-4
    assert stats.binom.sf(150, 10_000, 0.01) < 1.1e-6  # the probability that a step's batch is cut


def test_a_cap_costs_here_what_it_costs_by_dp_accounting() -> None:
    """jax_privacy 2.2.0 asks dp-accounting of this event."""
    needs(dp_accounting="0.6.0")
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    from dpzero_theory.privacy.dp_accounting import history_from_event

    event = dp.SelfComposedDpEvent(dp.dp_event.TruncatedSubsampledGaussianDpEvent(10_000, 0.01, 150, 1.0), 1000)
    theirs = PLDAccountant().compose(event).get_epsilon(1e-5)
    assert theirs == pytest.approx(1.8305, abs=1e-4)
    assert dz.epsilon(history_from_event(event, "add-remove"), 1e-5).upper == pytest.approx(theirs, abs=1e-4)


def test_a_replaced_record_is_two_clips_where_the_renyi_accountant_of_dp_accounting_says_one() -> None:
    needs(dp_accounting="0.6.0")
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    relation, event = dp.NeighboringRelation.REPLACE_ONE, dp.GaussianDpEvent(1.0)
    ours = dz.epsilon(dz.Step(noise=1.0, sampling=dz.FullBatch(), relation="replace-one"), 1e-5)
    assert RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5) < 4.73 < ours.lower
    assert PLDAccountant(relation).compose(event).get_epsilon(1e-5) == pytest.approx(ours.upper, abs=1e-3)


@pytest.mark.filterwarnings("ignore:Secure RNG turned off", "ignore:Full backward hook")
@pytest.mark.parametrize(("n", "told", "steps"), [(9_300, 92, 92), (4_900, 49, 49)])
def test_the_certified_accountant_is_told_what_opacus_tells_its_own(n: int, told: int, steps: int) -> None:
    """9,300 records in batches of 100 are drawn at 1/93, and every accountant is told 1/92, the safe side."""
    needs(opacus="1.6.0")
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    import dpzero_theory.privacy.opacus  # noqa: F401

    histories = []
    for accountant in ("certified", "prv"):
        engine, model = PrivacyEngine(accountant=accountant), torch.nn.Linear(2, 1)
        loader: Any = DataLoader(TensorDataset(torch.zeros(n, 2)), batch_size=100)
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), data_loader=loader, noise_multiplier=1.0,
            max_grad_norm=1.0,
        )  # fmt: skip
        (batch,) = next(iter(loader))
        model(batch).sum().backward()
        optimizer.step()
        histories.append(engine.accountant.history)
        assert loader.batch_sampler.sample_rate == 100 / n == pytest.approx(1 / round(n / 100))
        assert len(loader) == steps
    (_, rate, _) = histories[0][0]
    assert histories[0] == histories[1]
    assert 1 / rate == pytest.approx(told, abs=1e-9)


MIXING = {"aot", "aot_unpaired", "sft"}
KINDS = [
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
    "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated")
def test_dpo_losses_that_mix_pairs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(trl="1.16.0")
    from trl.trainer.dpo_trainer import DPOTrainer

    from tests.optim.trainers.test_trl import preferred

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda *args, **options: None)
    pairs = [
        {
            "prompt": f"name {word}",
            "chosen": f" good {word} " * long + ".",
            "rejected": " bad" * (1 + 3 * long % 7) + " .",
        }
        for long, word in enumerate("abcdabcd")
    ]
    trainer = preferred(tmp_path / "run", {"beta": 0.7}, pairs)
    with torch.no_grad():
        for weight in trainer.model.parameters():  # away from the reference model
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    trainer.model.eval()
    rows = [trainer.train_dataset[i] for i in range(0, 8, 2)]
    trainer.label_smoothing = 0.1

    compute: Any = DPOTrainer.compute_loss

    def loss(some: list[Any]) -> float:
        return float(compute(trainer, trainer.model, dict(trainer.data_collator(some))))

    found = set()
    for kind in KINDS:
        trainer.loss_types = [kind]
        with torch.no_grad():
            alone = sum(loss([row]) for row in rows) / len(rows)
            if not math.isclose(loss(rows), alone, rel_tol=1e-5):
                found.add(kind)
    assert found == MIXING
    for kind in MIXING:
        with pytest.raises(ValueError, match=f"loss_type must be left at .*; got .*'{kind}'"):
            preferred(tmp_path / kind, {"loss_type": [kind]})


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated")
@pytest.mark.parametrize("stored", ["F32", "BF16"])
def test_a_gguf_file_of_plain_floats_counts_as_quantised(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers cannot save such a model: weights that would be lost are refused before they are trained."""
    needs(transformers="5.23.0", gguf="0.19.0", trl="1.16.0")
    from transformers import AutoModelForCausalLM

    from tests.optim.trainers.test_quantised import trainer, written

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda *args, **options: None)
    written(tmp_path / "plain.gguf", 8, stored, stored)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="plain.gguf", dtype="auto")
    assert base.dtype == torch.float32  # BF16 too
    with pytest.raises(ValueError, match="quantized with gguf and is not serializable"):
        base.save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"model must be one that can be saved, or save_strategy 'no'; got .*gguf"):
        trainer(base, tmp_path / "run")
