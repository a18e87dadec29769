"""The methods whose steps `benchmarks.optimizer_step` measures, each as a function that makes one step."""

import tempfile
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    LlamaConfig,
    PreTrainedConfig,
    RobertaConfig,
)

from benchmarks.llm.models import DTYPES, configuration
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.sphere import DIRECTIONS

Tensor = torch.Tensor
Step = Callable[[], None]

BASE = "two-forwards"
PUBLIC, PRIVATE = "rademacher", "private-rademacher"
METHODS = (BASE, *DIRECTIONS, PRIVATE, "four-pass", "adamw", "dp-adamw")
SMOOTHING, STEP_SIZE = 1e-3, 1e-7
FORWARDS, TOGETHER = "forwards", "together"
SMALL: dict[str, PreTrainedConfig] = {
    "tiny": RobertaConfig(
        vocab_size=2000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    ),
    "small": RobertaConfig(
        vocab_size=10000, hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
    ),
    "minilm": BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    ),
    "smollm2-shape": LlamaConfig(
        vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, max_position_embeddings=8192, rope_theta=1e5, tie_word_embeddings=True,
    ),
}  # fmt: skip
"""Configurations of models that are smaller than those in llm/sizes.toml, and the shapes of MiniLM-L6 and
SmolLM2-135M, a language model whose loss is that of the last token's prediction."""


def base_of(method: str) -> str:
    """Return the method whose time a method's time is divided by: as many plain forward passes as it has points."""
    word, _, number = method.rpartition("-")
    if not number.isdecimal():
        return BASE
    points = {FORWARDS: int(number), TOGETHER: int(number), "stacked": int(number) + 1, "separate": int(number) + 1}
    return f"{FORWARDS}-{points.get(word, 2 * int(number))}"


@dataclass(frozen=True)
class StepCase:
    """What a step is measured on.

    size: the name of the model's size. batch: the number of records in the batch. length: their length in tokens.
    dtype: that of the weights. methods: the names of the methods to measure.
    """

    size: str
    batch: int
    length: int
    dtype: str = "float32"
    methods: tuple[str, ...] = METHODS


class Bench:
    """One model and one batch of random tokens on one device, and the methods' steps on them. Methods share the model,
    whose weights their steps change, but those with adapters and with Opacus' hooks have a model of their own. `stack`
    closes the runs' files at the end."""

    def __init__(self, case: StepCase, device: str, stack: ExitStack) -> None:
        self._stack = stack
        self._case, self._device = case, device
        self.module = classification_model(case, device)
        generator = torch.Generator().manual_seed(1)
        vocabulary = self.module.get_input_embeddings().weight.shape[0]
        tokens = torch.randint(5, vocabulary, (case.batch, case.length), generator=generator)
        labels = torch.randint(2, (case.batch,), generator=generator)
        self._batch = tokens.to(device), labels.to(device)
        self._data = TensorDataset(*self._batch)

    def step(self, method: str) -> Step:
        """Return a function without arguments that makes one step of the method with this name each time it is called.
        Raises KeyError for an unknown name."""
        if method in DIRECTIONS:
            return self._ours(method, private=False)
        word, _, number = method.rpartition("-")
        if number.isdecimal():
            return self._of_points(word, int(number))
        if method == PRIVATE:
            return self._ours(PUBLIC, private=True)
        steps = {
            BASE: self._forwards, "four-pass": self._four_pass, "adamw": self._adamw, "dp-adamw": self._dp_adamw,
            "dp-adamw-ghost": self._ghost_clipping, "lora": self._lora, "dp-lora": self._dp_lora,
            "private-lora": self._private_lora,
        }  # fmt: skip
        return steps[method]()

    def _of_points(self, word: str, number: int) -> Step:
        """Return the steps `forwards-N` and `together-N`; `LAW-K`, a private step of K directions of this law by
        central differences; and `stacked-K` and `separate-K`, private steps of rank 1 by forward differences, whose
        K + 1 points are evaluated in one pass or one by one."""
        if word == FORWARDS:
            return self._forwards(number)
        if word == TOGETHER:
            return self._forwards(1, number)
        if word not in ("stacked", "separate"):
            return self._ours(word, private=True, directions_per_step=number)
        points = number + 1 if word == "stacked" else 1
        return self._ours(
            "low-rank", private=True, directions_per_step=number, difference="forward", points_at_once=points
        )

    def _forwards(self, count: int = 2, copies: int = 1) -> Step:
        self.module.eval()
        batch = tuple(value.repeat(copies, *[1] * (value.ndim - 1)) for value in self._batch)

        def step() -> None:
            with torch.no_grad():
                for _ in range(count):
                    _losses(self.module, batch).sum().item()

        return step

    def _ours(self, kind: str, *, private: bool, **changes: Any) -> Step:
        common: dict[str, Any] = {
            "steps": 10**6,
            "expected_batch": len(self._data),
            "step_size": STEP_SIZE,
            "smoothing": SMOOTHING,
            "sampling": "full",
            "direction": kind,
            **changes,
        }
        rows = len(self._data)
        if private:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory())
            run = make_private_with_epsilon(
                self.module,
                _losses,
                self._data,
                target_epsilon=2.0,
                target_delta=1e-5,
                clip=100.0,
                relation="add-remove",
                folder=Path(folder) / "run",
                micro_batch=rows,
                **common,
            )
        else:
            plan = Plan.without_privacy(n=rows, **common)
            run = make_from_seed_not_private(self.module, _losses, self._data, plan, seed=0, micro_batch=rows)
        self._stack.callback(run.close)
        # the run must read the initial weights before another method changes them, as all methods use one module
        run.catch_up()
        return lambda: _void(run.step())

    def _four_pass(self) -> Step:
        parameters = _trained(self.module)
        self.module.eval()
        seeds = iter(range(10**9))

        def add(seed: int, scale: float) -> None:
            torch.manual_seed(seed)
            for p in parameters:
                p.add_(torch.randn(p.shape, dtype=p.dtype, device=p.device), alpha=scale)

        def step() -> None:
            seed = next(seeds)
            with torch.no_grad():
                add(seed, SMOOTHING)
                plus = _losses(self.module, self._batch).mean().item()
                add(seed, -2 * SMOOTHING)
                minus = _losses(self.module, self._batch).mean().item()
                add(seed, SMOOTHING)
                add(seed, -STEP_SIZE * (plus - minus) / (2 * SMOOTHING))

        return step

    def _adamw(self) -> Step:
        return self._adamw_on(self.module)

    def _lora(self) -> Step:
        return self._adamw_on(self._adapted())

    def _private_lora(self) -> Step:
        self.module = self._adapted()
        return self._ours(PUBLIC, private=True)

    def _adamw_on(self, module: nn.Module) -> Step:
        optimizer = torch.optim.AdamW(_trained(module), lr=STEP_SIZE)

        def step() -> None:
            module.train()
            _losses(module, self._batch).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            module.eval()

        return step

    def _dp_adamw(self) -> Step:
        # a model of its own, so that the hooks of Opacus do not slow the other methods
        return self._dp_adamw_on(classification_model(self._case, self._device))

    def _dp_lora(self) -> Step:
        return self._dp_adamw_on(self._adapted())

    def _dp_adamw_on(self, own: nn.Module) -> Step:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        wrapped = GradSampleModule(own.train(), strict=False)
        optimizer = DPOptimizer(torch.optim.AdamW(_trained(wrapped), lr=STEP_SIZE), **self._noise())

        def step() -> None:
            _losses(own, self._batch).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

        return step

    def _ghost_clipping(self) -> Step:
        """A step of DP-AdamW that finds the norms of the records' gradients without the gradients, and then goes
        backward once more (Opacus' ghost clipping)."""
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

        own = classification_model(self._case, self._device).train()
        clip = self._noise()["max_grad_norm"]
        wrapped = GradSampleModuleFastGradientClipping(own, strict=False, max_grad_norm=clip)
        adamw = torch.optim.AdamW(wrapped.parameters(), lr=STEP_SIZE)
        optimizer = DPOptimizerFastGradientClipping(adamw, **self._noise())

        def step() -> None:
            DPTensorFastGradientClipping(wrapped, optimizer, _losses(own, self._batch)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def _noise(self) -> dict[str, Any]:
        return {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": len(self._data)}

    def _adapted(self) -> nn.Module:
        """Return a model of its own whose weights are frozen, with adapters of rank 8 beside its query and value
        matrices."""
        from peft import LoraConfig, get_peft_model

        own: nn.Module = classification_model(self._case, self._device)
        torch.manual_seed(42)
        adapters = LoraConfig(r=8, lora_alpha=16, target_modules=r".*\b(query|value|q_proj|v_proj)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft reads an attribute that transformers renames
            get_peft_model(own, adapters)  # it puts them into the layers of `own`
        return own


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _void(_: object) -> None:
    pass


def _losses(module: nn.Module, batch: Any) -> Tensor:
    """Return the cross entropy of each record of a batch (tokens, labels), in float32, shape (batch,)."""
    tokens, labels = batch
    if type(module).__name__ == "LlamaForCausalLM":
        logits = module(input_ids=tokens, logits_to_keep=1).logits[:, -1]
        return F.cross_entropy(logits.float(), labels, reduction="none")
    return F.cross_entropy(module(input_ids=tokens).logits.float(), labels, reduction="none")


def classification_model(case: StepCase, device: str) -> Any:
    """Return a classification model of the case's size and dtype with random weights, made on the device, in evaluation
    mode."""
    config = SMALL[case.size] if case.size in SMALL else configuration(case.size)
    torch.manual_seed(0)
    with torch.device(device):
        kind = AutoModelForCausalLM if case.size == "smollm2-shape" else AutoModelForSequenceClassification
        model = kind.from_config(config, dtype=DTYPES[case.dtype])
    model.config.use_cache = False
    return model.eval()
