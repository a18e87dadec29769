"""A run whose losses an engine evaluates, beside the same run whose losses are a function."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainingArguments

from dpzero_theory.optim.engines.engine import trained
from dpzero_theory.optim.engines.probe import _random_factor, probe
from dpzero_theory.optim.engines.texts import adapted as adapted_from
from dpzero_theory.optim.engines.texts import losses_of_records, texts_of
from dpzero_theory.optim.files.transcript import Checkpoint, read
from dpzero_theory.optim.losses.task_losses import losses_for
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.trainers.trainer import DPZeroTrainer
from dpzero_theory.optim.verify import verify
from tests.optim.engines import tiny
from tests.optim.engines.tiny import Changed, adapted, engine, records
from tests.optim.engines.toy import PRIVATE


@pytest.mark.parametrize(
    "changes", [{}, {"direction": "rademacher"}, {"difference": "forward", "direction": "gaussian"}]
)
def test_an_engine_gives_the_sums_of_the_function(changes: dict[str, Any]) -> None:
    model, plan = adapted(), tiny.plan(**changes)
    one = make_from_seed_not_private(model, losses_for(model), records(), plan, seed=2, collate=tiny.padded)
    other = make_from_seed_not_private(adapted("meta"), None, records(), plan, seed=2, engine=engine())
    for _ in range(5):
        assert other.step().sums == pytest.approx(one.step().sums, rel=1e-3, abs=1e-3)
    ours, theirs = one.weights.values(), other.weights.values()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)


def test_a_private_run_names_its_engine_and_is_verified(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = make_private_with_epsilon(adapted("meta"), None, records(), engine=engine(), folder=folder, **PRIVATE)
    initial = Checkpoint.of(run.state_dict())
    run.run()
    report = verify(folder, initial=initial, final=Checkpoint.of(run.state_dict()))
    run.close()
    assert not report.fault
    header = read(folder).header
    assert (header.losses, header.isolation) == (engine().name, "probed")
    assert header.losses.startswith(f"torch {torch.__version__} ")
    assert header.losses.endswith(" float32")
    other = engine()
    other.name = "another engine"
    with pytest.raises(ValueError, match="losses"):
        make_private_with_epsilon(adapted("meta"), None, records(), engine=other, folder=folder, resume=True, **PRIVATE)


def test_a_batch_invariant_engine_is_exact_at_any_batch(tmp_path: Path) -> None:
    asked: list[int] = []

    def counted(inner: Any, adapters: Any, records: Any) -> Any:
        asked.append(len(records))
        return inner.scores(adapters, records)

    invariant = Changed(counted, invariant=True)
    run = make_private_with_epsilon(
        adapted(), None, records(), engine=invariant, folder=tmp_path / "run", isolation="probed", **PRIVATE
    )
    asked.clear()
    run.run()
    run.close()
    assert max(asked) > 1
    assert read(tmp_path / "run").header.isolation == "exact"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_trainer_takes_an_engine(device: str, tmp_path: Path) -> None:
    arguments = TrainingArguments(str(tmp_path / "out"), report_to="none", use_cpu=True, logging_steps=1)
    data = [{**record, "attention_mask": [1] * len(record["input_ids"])} for record in records()]
    trainer = DPZeroTrainer(adapted(device), arguments, train_dataset=data, engine=engine(), private=PRIVATE)
    assert trainer.train().global_step == 5
    trainer.save_model()
    assert load_file(tmp_path / "out" / "adapter_model.safetensors").keys()
    assert read(tmp_path / "out" / "_dpzero").header.losses == engine().name
    with pytest.raises(ValueError, match="losses must be None with an engine"):
        DPZeroTrainer(adapted(), arguments, engine=engine(), losses=losses_of_records, private=PRIVATE)
    with pytest.raises(ValueError, match="engine must be left out of private: it is an argument of the trainer"):
        DPZeroTrainer(adapted(), arguments, private={**PRIVATE, "engine": "vllm"})


@pytest.mark.parametrize("change", [tiny.of_batch, tiny.of_place, tiny.pads_left])
@pytest.mark.parametrize("longest", [0, tiny.LONGEST])
def test_a_loss_that_is_not_a_records_own_is_refused(change: Any, longest: int, tmp_path: Path) -> None:
    faulty = Changed(change)
    faulty.longest = longest
    with pytest.raises(ValueError, match=r"must give each record a (number|loss) of its own|engine must serve") as said:
        make_private_with_epsilon(adapted(), None, records(), engine=faulty, folder=tmp_path / "run", **PRIVATE)
    assert "\n" not in str(said.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (tiny.without_target, r"got none of base_model\.model\.model\.layers\.1\.self_attn\.v_proj, which changes no"),
        (tiny.other_base, "engine must serve the model of the run's module"),
        (tiny.pads_left, "engine must serve the model of the run's module"),
        (tiny.cached, "engine must use every adapter"),
        (tiny.half_as_large, "engine must use adapters as the run's module does"),
        (tiny.of_batch, "engine must serve the model of the run's module"),
    ],
)
def test_the_probe_refuses_another_model(change: Any, said: str, tmp_path: Path) -> None:
    probe(Changed(tiny.sound), adapted(), trained(adapted()))
    with pytest.raises(ValueError, match=said) as raised:
        make_private_with_epsilon(
            adapted(), None, records(), engine=Changed(change), folder=tmp_path / "run", **PRIVATE
        )
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rank", [1, 4, 64])
def test_the_probe_adds_products_whose_size_is_one_half_over_the_rank(rank: int) -> None:
    draw = torch.Generator().manual_seed(3)
    first, second = torch.zeros(rank, 256), torch.zeros(512, rank)
    product = _random_factor("q.lora_B.weight", second, draw) @ _random_factor("q.lora_A.weight", first, draw)
    assert float((product @ torch.randn(256, 200, generator=draw)).std()) == pytest.approx(0.5 / rank, rel=0.2)


def test_the_probe_counts_bits_where_an_engine_is_invariant() -> None:
    probe(Changed(tiny.last_bit_of_batch), adapted(), trained(adapted()))
    with pytest.raises(ValueError, match="a loss of its own; got one that changes by"):
        probe(Changed(tiny.last_bit_of_batch, invariant=True), adapted(), trained(adapted()))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft, in transformers
def test_the_probe_loads_the_base_of_a_module_without_weights(tmp_path: Path) -> None:
    module = adapted_from(tiny.saved(tmp_path / "model"), tiny.lora())
    assert sum(p.numel() for p in module.parameters() if not p.is_meta) == sum(
        map(torch.numel, trained(module).values())
    )
    probe(Changed(tiny.sound), module, trained(module))
    other = adapted_from(tiny.saved(tmp_path / "other", seed=1), tiny.lora())
    with pytest.raises(ValueError, match="engine must serve the model of the run's module"):
        probe(Changed(tiny.sound), other, trained(other))


def test_the_probe_leaves_the_module_as_it_was() -> None:
    module = adapted().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    probe(Changed(tiny.sound), module, trained(module))
    assert all(part.training for part in module.modules())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "vlm"}, "engine, if it is no Engine, must be one of vllm; got 'vlm'"),
        ({"engine": 3}, "engine, if it is no Engine, must be one of vllm; got 3"),
        ({"engine": "vllm", "losses": losses_of_records}, "losses must be None with an engine"),
        ({"collate": list}, "collate must be None"),
        ({"losses": None, "engine": None}, "losses must be a function; got NoneType"),
    ],
)
def test_what_does_not_go_with_an_engine_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    settings = {"losses": None, "engine": Changed(tiny.sound), **PRIVATE, **given}
    with pytest.raises(ValueError, match=said):
        make_private_with_epsilon(adapted(), data=records(), folder=tmp_path / "run", **settings)


def test_derivatives_need_the_module() -> None:
    with pytest.raises(ValueError, match="difference must be 'forward' or 'central'"):
        make_from_seed_not_private(
            adapted(), None, records(), tiny.plan(difference="exact", smoothing=0.0), seed=1, engine=engine()
        )


def test_a_masked_token_counts_nothing_on_either_side() -> None:
    (record, *_), pad = records(), [0, 0]
    ones = [1] * len(record["input_ids"])
    left = {
        "input_ids": pad + record["input_ids"], "labels": [-100, -100] + record["labels"], "attention_mask": pad + ones,
    }  # fmt: skip
    right = {
        "input_ids": record["input_ids"] + pad, "labels": record["labels"] + [-100, -100], "attention_mask": ones + pad,
    }  # fmt: skip
    assert len(set(losses_of_records(adapted(), [record, left, right]).tolist())) == 1


def test_losses_of_records_are_those_of_the_task() -> None:
    model = adapted()
    with torch.no_grad():
        expected = losses_for(model)(model, tiny.padded(records()))
        found = losses_of_records(model, records())
        both = losses_of_records(model, [dict(one, labels=[-100, *one["input_ids"][1:]]) for one in records(2)])
        chosen = losses_of_records(
            model, [{"options": [dict(one, labels=one["input_ids"]) for one in records(2)], "right": 1}]
        )
    assert torch.allclose(found, expected.double(), atol=1e-5)
    sums = [float(loss) * (len(one["input_ids"]) - 1) for loss, one in zip(both, records(2), strict=True)]
    assert float(chosen) == pytest.approx(sums[1] + np.log(sum(np.exp(-each) for each in sums)), abs=1e-4)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"input_ids": [1, 2]}, "records must have labels"),
        ({"input_ids": [1, 2], "labels": [1]}, "labels must be as many as input_ids; got 1 for 2"),
        ({"input_ids": [1, 2], "labels": [-100, 3]}, "labels must repeat input_ids"),
    ],
)
def test_records_of_another_form_are_refused(record: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        texts_of(record)
