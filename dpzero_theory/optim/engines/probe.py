"""Compares a serving engine with the model that it should serve, on random tokens, before a run begins.

Servers have been seen to ignore adapters on some layers, to hold other weights, to reuse values that were cached for an
earlier adapter, and to return losses that depend on the batch.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from dpzero_theory.check import Array
from dpzero_theory.optim.engines.engine import Adapter, Engine
from dpzero_theory.optim.engines.texts import IGNORED, base_of, losses_of_records

_RECORDS, _TOKENS = 32, (8, 24)
"""The number of random records, and the fewest and the most tokens of a record, except for the last two records."""
_LONG = 160
"""The number of tokens of the last two records, more than a block of a server's prefix cache holds (16 to 128)."""
_SIZE = 0.5
"""For random LoRA factors A and B of rank r, the entries of B A x are about this number over r in size, if those of x
are about 1. Losses then differ from those without factors by far more than rounding."""
_AT_ONCE = 8
"""The number of adapters, each with the LoRA factors of one layer only, that are evaluated in one call."""


def probe(engine: Engine, module: nn.Module, adapter: Adapter) -> None:
    """Compare the losses of an engine with those of the model that it should serve, on 32 records of random tokens.

    Three adapters are compared: one of zeros, one of random numbers, and the random one with the opposite sign of each
    product of LoRA factors. Then the LoRA factors of one layer at a time are used alone, and each must change a loss.
    Finally the engine evaluates the records in reverse order, and two of them alone. Losses may differ by rounding;
    those of an engine with `invariant` must not change at all with the order or the batch.

    Args:
        engine: the engine. Each of `engine.parts()` is tested. Nothing is done if `engine.longest` is 0.
        module: the run's module, a causal language model of transformers with LoRA factors of peft. If it has weights
            on the meta device, the model is loaded again from the folder or hub name that it came from.
        adapter: the trained parameters of the module by name. Only their names and shapes matter.

    Raises:
        ValueError: losses differ, or the LoRA factors of a layer change none. The message names the first fault.
    """
    if not engine.longest:
        return
    model = _loaded(module) if any(parameter.is_meta for parameter in module.parameters()) else module
    draw, vocabulary = np.random.default_rng(0), int(model.config.vocab_size)  # type: ignore[arg-type, union-attr]
    most = min(_TOKENS[1], engine.longest)
    sizes = draw.integers(min(_TOKENS[0], most), most + 1, _RECORDS)
    sizes[-2:] = min(_LONG, engine.longest)
    records = [_record(draw.integers(0, vocabulary, size).tolist()) for size in sizes]
    generator = torch.Generator().manual_seed(0)
    large = {name: _random_factor(name, value, generator) for name, value in adapter.items()}
    without = {name: torch.zeros_like(value) for name, value in adapter.items()}
    points = [without, large, {name: -value if "lora_B" in name else value for name, value in large.items()}]
    targets = sorted({name.partition(".lora_")[0] for name in adapter})
    single = [
        {name: (large if name.startswith(f"{target}.lora_") else without)[name] for name in large} for target in targets
    ]
    reference = _reference(model)
    wanted, meant = reference(points, records), reference(single, records[:2])
    eps = max(engine.rounding, *(torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()))
    allowed = rounding(eps, wanted)
    for part in engine.parts():
        _compare(part, points, records, wanted, allowed)
        for first in range(0, len(single), _AT_ONCE):
            here = slice(first, first + _AT_ONCE)
            changes = np.abs(part.scores(single[here], records[:2]) - part.scores([without], records[:2])).max(1)
            expected = np.abs(meant[here] - wanted[0, :2]).max(1)
            for target, change, should in zip(targets[here], changes, expected, strict=True):
                if not change > should / 100 and should > allowed:
                    raise ValueError(
                        f"engine must use every adapter; got none of {target}, which changes no loss: leave it out of"
                        " target_modules"
                    )
        _compare(part, points, records, wanted, allowed, signs=True)
        _require_own(part, large, records, allowed)


def rounding(eps: float, *losses: Array) -> float:
    """Return the largest change of a loss that is taken for rounding: eps^(2/3) (largest finite |loss| + 0.1).

    `eps` is the unit roundoff of the coarsest operation that computed the arrays `losses`. 0.1 allows for losses near 0
    that are sums of larger terms.
    """
    return float(eps ** (2 / 3)) * (largest(*losses) + 0.1)


def largest(*losses: Array) -> float:
    """Return the largest absolute value of the finite entries of all arrays; 0 if there are none."""
    return max(float(np.abs(each[np.isfinite(each)]).max(initial=0.0)) for each in losses)


def _compare(
    engine: Engine,
    points: Sequence[Adapter],
    records: Sequence[Any],
    wanted: Array,
    allowed: float,
    *,
    signs: bool = False,
) -> None:
    # Raises ValueError unless the engine's losses are `wanted`, shape (3 adapters, records), up to a difference
    # `allowed`. `points` has an adapter of zeros, a random one, and that with the opposite sign of all products of
    # factors. With `signs` the last two are compared, else the first.
    here = slice(1, None) if signs else slice(0, 1)
    gap = _gap(engine.scores(points[here], records), wanted[here])
    if not gap <= allowed:
        rule = "use adapters as the run's module does" if signs else "serve the model of the run's module"
        how = "with adapters of both signs" if signs else "without adapters: it has other weights or another vocabulary"
        raise ValueError(f"engine must {rule}; got losses of random tokens that differ by {gap:.2g} {how}")


def _require_own(engine: Engine, adapter: Adapter, records: Sequence[Any], allowed: float) -> None:
    first = engine.scores([adapter], records)
    others = {
        "at another place in the batch": engine.scores([adapter], records[::-1])[:, ::-1],
        "alone": np.concatenate([engine.scores([adapter], [record]) for record in records[:2]], axis=1),
    }
    for how, found in others.items():
        gap = _gap(found, first[:, : found.shape[1]])
        if not gap <= (0.0 if engine.invariant else allowed):
            raise ValueError(f"engine must give each record a loss of its own; got one that changes by {gap:.2g} {how}")


def _loaded(module: nn.Module) -> nn.Module:
    # Loads the model of a module with weights on the meta device again, in float32 on the CPU
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    name, config = base_of(module)
    base = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    found: nn.Module = get_peft_model(base, config)
    return found


def _reference(module: nn.Module) -> Callable[[Sequence[Adapter], Sequence[Any]], Array]:
    # Returns a function (adapters, records) -> the module's losses with each adapter, shape (adapters, records)
    def losses(adapters: Sequence[Adapter], records: Sequence[Any]) -> Array:
        modes = {part: part.training for part in module.modules()}
        module.eval()
        try:
            with torch.no_grad():
                return np.stack(
                    [losses_of_records(partial(_at, module, adapter), records).numpy() for adapter in adapters]
                )
        finally:
            for part, mode in modes.items():
                part.training = mode

    return losses


def _at(module: nn.Module, adapter: Adapter, **inputs: torch.Tensor) -> Any:
    return functional_call(module, dict(adapter), (), inputs)


def _record(ids: list[int]) -> dict[str, Any]:
    return {"input_ids": ids, "labels": [IGNORED] * (len(ids) // 2) + ids[len(ids) // 2 :]}


def _random_factor(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # Returns a random factor in place of `value`. If the entries of a layer's input x are about 1 in size, those of A x
    # are too, for the factor A of shape (rank, inputs), and those of B A x are about _SIZE/rank, for the factor B of
    # shape (outputs, rank). Any size that shows in a loss would do.
    size = (1.0 if "lora_A" in name else _SIZE / value.shape[-1]) / math.sqrt(value.shape[-1])
    return (size * torch.randn(value.shape, generator=generator, dtype=torch.float32)).to(value)


def _gap(found: Array, wanted: Array) -> float:
    return float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max())
