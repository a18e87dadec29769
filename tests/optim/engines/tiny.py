"""A tiny language model with adapters, its records, and engines with planted faults."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

from dpzero_theory.check import Array
from dpzero_theory.optim.engines.engine import Adapter, Engine, TorchEngine
from dpzero_theory.optim.engines.texts import losses_of_records
from dpzero_theory.optim.plan import Plan

CONFIG = LlamaConfig(
    vocab_size=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=64,
)  # fmt: skip
TARGETS = ["q_proj", "v_proj"]
LONGEST = 30


def lora(targets: Sequence[str] = TARGETS) -> LoraConfig:
    return LoraConfig(r=2, lora_alpha=4, target_modules=list(targets), init_lora_weights=False, task_type="CAUSAL_LM")


def records(count: int = 24) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    found = []
    for _ in range(count):
        ids = draw.integers(1, 50, draw.integers(5, 9)).tolist()
        found.append({"input_ids": ids, "labels": [-100] * (len(ids) - 2) + ids[-2:]})
    return found


def padded(batch: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(record["input_ids"]) for record in batch)

    def filled(name: str, value: int) -> torch.Tensor:
        return torch.tensor([record[name] + [value] * (longest - len(record[name])) for record in batch])

    ids = filled("input_ids", 0)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": filled("labels", -100)}


def base(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIG)


def saved(folder: Path, seed: int = 0) -> str:
    """Save a model of random weights, and return its folder."""
    base(seed).save_pretrained(folder)
    return str(folder)


def filled(model: Any) -> Any:
    """Give the adapters of a model the same numbers every time."""
    draw = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            where, _, last = name.rpartition(".")
            values = torch.randn(parameter.shape, generator=draw) / 4
            setattr(model.get_submodule(where), last, torch.nn.Parameter(values))
    return model


def adapted(device: str = "cpu") -> Any:
    """Return a language model with adapters of fixed numbers; its frozen weights may be on the meta device."""
    with torch.device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads an attribute that transformers renames
        model = get_peft_model(base(), lora(), low_cpu_mem_usage=False)
    return filled(model)


def engine() -> TorchEngine:
    return TorchEngine(adapted(), losses_of_records)


def plan(**changes: Any) -> Plan:
    settings = {
        "n": 24, "steps": 5, "expected_batch": 8, "step_size": 0.05, "smoothing": 1e-2, "sampling": "poisson",
        "directions_per_step": 2, "direction": "low-rank", "difference": "central", **changes,
    }  # fmt: skip
    return Plan.without_privacy(**settings)


class Changed(Engine):
    """An engine with a fault: its losses are change(inner engine, adapters, records)."""

    def __init__(self, change: Any, inner: Engine | None = None, *, invariant: bool = False) -> None:
        self.inner, self._change = engine() if inner is None else inner, change
        self.name, self.rounding, self.invariant = "changed", self.inner.rounding, invariant
        self.longest = LONGEST

    def scores(self, adapters: Sequence[Adapter], records: Sequence[Any]) -> Array:
        return self._change(self.inner, list(adapters), list(records))


def sound(inner: Engine, adapters: list[Adapter], records: list[Any]) -> Array:
    return inner.scores(adapters, records)


def of_batch(inner: Engine, adapters: list[Adapter], records: list[Any]) -> Array:
    return inner.scores(adapters, records) * (1 + len(records) / 100)


def of_place(inner: Engine, adapters: list[Adapter], records: list[Any]) -> Array:
    return inner.scores(adapters, records) * (1 + np.arange(len(records)) / 100)


def last_bit_of_batch(inner: Engine, adapters: list[Adapter], records: list[Any]) -> Array:
    return inner.scores(adapters, records) * (1 + 2.0**-50 * (len(records) % 2))


def cached(inner: Engine, adapters: list[Adapter], records: list[Any]) -> Array:
    """A cache of prefixes by slot and prompt, as if the first adapter in a slot were still there."""
    seen = inner.__dict__.setdefault("seen", {})
    found = inner.scores(adapters, records)
    for slot in range(len(adapters)):
        for column, record in enumerate(records):
            found[slot, column] = seen.setdefault((slot, str(record)), found[slot, column])
    return found


def pads_left(inner: Engine, adapters: list[Adapter], records: list[Any]) -> Array:
    """Other padding than the model's: on the left, without a mask."""
    longest = max(len(record["input_ids"]) for record in records)
    filled = []
    for record in records:
        more = longest - len(record["input_ids"])
        filled.append({"input_ids": [7] * more + record["input_ids"], "labels": [-100] * more + record["labels"]})
    return inner.scores(adapters, filled)


def without_target(inner: Engine, adapters: list[Adapter], records: list[Any]) -> Array:
    dropped = [
        {name: value * 0 if "layers.1.self_attn.v_proj" in name else value for name, value in adapter.items()}
        for adapter in adapters
    ]
    return inner.scores(dropped, records)


def other_base(inner: Any, adapters: list[Adapter], records: list[Any]) -> Array:
    with torch.no_grad():
        weight = inner._module.get_submodule("base_model.model.lm_head").weight
        weight.mul_(1.01)
        found = inner.scores(adapters, records)
        weight.div_(1.01)
    return found


def half_as_large(inner: Engine, adapters: list[Adapter], records: list[Any]) -> Array:
    return inner.scores(
        [{name: value / (1 + ("lora_B" in name)) for name, value in adapter.items()} for adapter in adapters], records
    )
