"""vLLM as the engine of a run: `make test-engine` installs it, and other test runs skip this file.

The engine serves a tiny model of random weights; `benchmarks.llm.engine` serves a pretrained one.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make test-engine installs it)")

from dpzero_theory.optim.engines.engine import EngineError, TorchEngine, trained
from dpzero_theory.optim.engines.probe import probe
from dpzero_theory.optim.engines.texts import adapted, losses_of_records
from dpzero_theory.optim.engines.vllm import VLLMEngine
from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.verify import verify
from tests.optim.engines import tiny
from tests.optim.engines.tiny import Changed, filled, records
from tests.optim.engines.toy import PRIVATE

pytestmark = pytest.mark.filterwarnings("default")  # warnings of vLLM's and of what it imports


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    os.environ.update({"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"})
    return tiny.saved(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder: str) -> VLLMEngine:
    return VLLMEngine(folder, tiny.lora(), points=4, longest=tiny.LONGEST)


def module(folder: str) -> Any:
    return filled(adapted(folder, tiny.lora()))


def with_weights(folder: str) -> Any:
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    return filled(get_peft_model(AutoModelForCausalLM.from_pretrained(folder), tiny.lora()))


def test_losses_are_those_of_transformers(engine: VLLMEngine, folder: str) -> None:
    one = trained(module(folder))
    points = [one, {name: -value if "lora_B" in name else value for name, value in one.items()}] * 3
    asked = [*records(5), {"options": [dict(text, labels=text["input_ids"]) for text in records(2)], "right": 1}]
    expected = TorchEngine(with_weights(folder), losses_of_records).scores(points, asked)
    assert np.allclose(engine.scores(points, asked), expected, atol=1e-4)
    assert not np.allclose(expected[0], expected[1], atol=1e-3)


def test_a_record_that_does_not_fit_has_no_loss(engine: VLLMEngine, folder: str) -> None:
    long = {"input_ids": [1] * (tiny.LONGEST + 1), "labels": [1] * (tiny.LONGEST + 1)}
    other = {"input_ids": [1, 999], "labels": [1, 999]}
    losses = engine.scores([trained(module(folder))], [long, *records(1), other])[0]
    assert np.isnan(losses).tolist() == [True, False, True]


def test_the_same_steps_as_with_torch(engine: VLLMEngine, folder: str) -> None:
    runs = [
        make_from_seed_not_private(module(folder), None, records(), tiny.plan(), seed=3, engine=one)
        for one in (engine, TorchEngine(with_weights(folder), losses_of_records))
    ]
    for _ in range(5):
        one, other = (run.step().sums for run in runs)
        assert one == pytest.approx(other, abs=5e-2, rel=1e-2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (tiny.without_target, "engine must use every adapter; got none of "),
        (tiny.pads_left, "engine must serve the model of the run's module"),
        (tiny.of_batch, "engine must serve the model of the run's module"),
        (tiny.cached, "engine must use every adapter"),
        (tiny.half_as_large, "engine must use adapters as the run's module does"),
    ],
)
def test_planted_faults_are_refused(engine: VLLMEngine, folder: str, change: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        make_private_with_epsilon(
            module(folder), None, records(), engine=Changed(change, engine), folder=tmp_path / "run", **PRIVATE
        )
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_base_of_other_weights_is_refused(engine: VLLMEngine, tmp_path: Path) -> None:
    other = module(tiny.saved(tmp_path / "other", seed=1))
    with pytest.raises(ValueError, match="engine must serve the model of the run's module"):
        probe(engine, other, trained(other))


# From here on each test has an engine of its own: when one ends, vLLM clears what all engines of a process share.


def test_a_private_run_by_name(folder: str, tmp_path: Path) -> None:
    model = with_weights(folder)
    run = make_private_with_epsilon(model, None, records(), engine="vllm", folder=tmp_path / "run", **PRIVATE)
    run.run()
    run.close()
    header = read(tmp_path / "run").header
    assert header.losses.startswith("vllm ")
    assert header.losses.endswith(" float32")
    assert header.isolation == "probed"
    assert not verify(tmp_path / "run").fault


def test_a_cache_of_prefixes_that_is_read_is_refused(folder: str) -> None:
    served = VLLMEngine(folder, tiny.lora(), points=4, longest=60, enable_prefix_caching=True, block_size=32)
    model = module(folder)
    probe(served, model, trained(model))  # vLLM does not read its cache where log-probabilities are asked for
    served._asked.skip_reading_prefix_cache = False
    with pytest.raises(EngineError, match="vLLM must return a log-probability for every token of a record"):
        probe(served, model, trained(model))


def test_a_target_that_the_engine_ignores_is_refused(folder: str) -> None:
    """The engine is started for other projections than those that are trained (vLLM merges q, k and v into one)."""
    served = VLLMEngine(folder, tiny.lora(), points=4, longest=tiny.LONGEST, lora_target_modules=["q_proj"])
    model = filled(adapted(folder, tiny.lora(["q_proj", "o_proj"])))
    served._config = tiny.lora(["q_proj", "o_proj"])
    with pytest.raises(ValueError, match=r"engine must use every adapter; got none of .*o_proj"):
        probe(served, model, trained(model))
