"""An engine of vLLM (the `vllm` extra), which serves a frozen language model with several LoRA adapters.

vLLM computes the log-probabilities of a record's own tokens (`prompt_logprobs`) with each adapter in one batch; it
generates nothing, and needs no tokenizer. vLLM's prefix cache, statistics and usage reports are off, and it logs no
requests. `docs/explanation/threat-model.md` says what else it keeps of private records.
"""

import gc
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from dpzero_theory.check import Array, choice, integer
from dpzero_theory.optim.engines.engine import Adapter, Engine, EngineError
from dpzero_theory.optim.engines.texts import Text, base_of, loss_of, texts_of

_MEMORY = Path("/dev/shm")
"""A file system in memory, where vLLM's adapters are written; if there is none, they are ordinary temporary files."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts for the largest rank of adapters."""
_LONGEST = 1024
"""The largest number of tokens of a record in an engine that `VLLMEngine.of` makes."""


class VLLMEngine(Engine):
    """An engine of vLLM in this process, which evaluates losses for several LoRA adapters in one batch.

    It sets environment variables of vLLM. A process can use one such engine at a time: when one ends, vLLM clears what
    all engines of the process share.

    Args:
        model: the folder of the frozen model, or its name on the Hugging Face hub.
        config: peft's LoraConfig of the adapters, whose `target_modules` must be a list of names.
        points: how many adapters are evaluated in one batch, an integer >= 1, best as many as a step has: 2 K for
            central differences along K directions, K + 1 for forward ones.
        longest: the largest number of tokens of a record, an integer >= 2. The loss of a longer record is NaN.
        dtype: the number type of the model and the adapters: "float32", "bfloat16" or "float16". In half precision,
            small shifts of the adapters are lost to rounding.
        invariant: whether vLLM computes the same bits for every batch size (VLLM_BATCH_INVARIANT), on GPUs of compute
            capability 8.0 or above.
        compared: whether the engine is compared with the model before a run (`engines.probe`), for which the model is
            also loaded on the CPU. If False, the engine's name ends in "not compared".
        options: further arguments of `vllm.LLM`, such as tensor_parallel_size, which override those set here.

    Raises:
        ValueError: an argument is outside its range, or vLLM is not installed.
        Exception: what `vllm.LLM` raises.
    """

    def __init__(
        self,
        model: str,
        config: Any,
        *,
        points: int = 2,
        longest: int = _LONGEST,
        dtype: str = "float32",
        invariant: bool = False,
        compared: bool = True,
        **options: Any,
    ) -> None:
        self._points, self._most = integer("points", points), integer("longest", longest, at_least=2)
        choice("dtype", dtype, ("float32", "bfloat16", "float16"))
        if isinstance(config.target_modules, str) or not config.target_modules:
            raise ValueError(f"target_modules must be names of projections; got {config.target_modules!r}")
        rank = next((most for most in _RANKS if config.r <= most), None)
        if rank is None:
            raise ValueError(f"r must be at most {_RANKS[-1]}, the largest rank of vLLM; got {config.r}")
        os.environ.update({"VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
        os.environ["VLLM_BATCH_INVARIANT"] = str(int(invariant))
        try:
            import vllm
        except ImportError as error:
            raise ValueError("engine='vllm' needs vLLM: pip install 'dpzero-theory[vllm]'") from error
        self._config = config
        gc.collect()  # Deletes an earlier engine that nothing refers to; if it ended later, this one would break.
        settings = {
            "enable_lora": True, "max_loras": points, "max_lora_rank": rank,
            "lora_target_modules": sorted(config.target_modules), "max_model_len": longest + 1,
            "enforce_eager": True, "enable_prefix_caching": False, "disable_log_stats": True,
            "skip_tokenizer_init": True,
        }  # fmt: skip
        self._llm = vllm.LLM(model=model, dtype=dtype, **settings | options)
        self._vocabulary = self._llm.llm_engine.model_config.get_vocab_size()
        self._asked = vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        self._folder = tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None)
        self._close = weakref.finalize(self, self._folder.cleanup)
        self.name = f"vllm {vllm.__version__} {Path(model).name} {dtype}" + ("" if compared else ", not compared")
        self.rounding, self.invariant = torch.finfo(getattr(torch, dtype)).eps, invariant
        self.longest = longest if compared else 0

    @classmethod
    def of(cls, module: nn.Module, points: int) -> Self:
        """Return an engine that serves the base model of a run's module, in the number type of its frozen weights.

        Records may have up to 1,024 tokens, or one token less than the model takes if that is fewer.

        Args:
            module: a causal language model of transformers with LoRA factors of peft.
            points: how many adapters are evaluated in one batch, an integer >= 1.

        Raises:
            ValueError: another module, an argument that `VLLMEngine` does not accept, or vLLM is not installed.
            Exception: what `vllm.LLM` raises.
        """
        name, config = base_of(module)
        dtype = next(p.dtype for p in module.parameters() if not p.requires_grad)
        most = getattr(module.config, "max_position_embeddings", _LONGEST + 1)
        longest = min(_LONGEST, int(most) - 1)
        return cls(name, config, points=points, longest=longest, dtype=str(dtype).removeprefix("torch."))

    def scores(self, adapters: Sequence[Adapter], records: Sequence[Any]) -> Array:
        texts = [texts_of(record) for record in records]
        found = np.empty((len(adapters), len(records)))
        for first in range(0, len(adapters), self._points):
            some = adapters[first : first + self._points]
            logs = self._logs(some, [text for each in texts for text in each])
            for row in range(len(some)):
                rest = iter(logs[row])
                for column, (record, each) in enumerate(zip(records, texts, strict=True)):
                    found[first + row, column] = loss_of(record, [next(rest) for _ in each])
        return found

    def close(self) -> None:
        """Delete the temporary files of the adapters. The engine cannot be used afterwards."""
        self._close()

    def _logs(self, adapters: Sequence[Adapter], texts: Sequence[Text]) -> list[list[Array]]:
        # Returns for each adapter and each text the log-probabilities of its counted tokens, or one NaN if the text is
        # too long or has a token outside the vocabulary. There may be at most `points` adapters.
        from vllm import TokensPrompt
        from vllm.lora.request import LoRARequest

        able = [
            len(text.ids) <= self._most and 0 <= min(text.ids) <= max(text.ids) < self._vocabulary for text in texts
        ]
        prompts = [TokensPrompt(prompt_token_ids=text.ids) for text, one in zip(texts, able, strict=True) if one]
        try:
            for number, adapter in enumerate(adapters, 1):
                request = LoRARequest(f"point {number}", number, self._written(number, adapter), load_inplace=True)
                self._llm.llm_engine.add_lora(request)
            # With load_inplace these requests would read the files again in every forward pass.
            loaded = [
                LoRARequest(f"point {number}", number, str(self._path(number)))
                for number in range(1, len(adapters) + 1)
            ]
            answers = self._llm.generate(
                prompts * len(adapters), self._asked, use_tqdm=False,
                lora_request=[request for request in loaded for _ in prompts],
            )  # fmt: skip
        except Exception as error:
            raise EngineError(f"vLLM cannot evaluate losses: {' '.join(str(error).split()):.200}") from error
        rest = iter(answers)
        return [
            [_counted(text, next(rest)) if one else np.array([np.nan]) for text, one in zip(texts, able, strict=True)]
            for _ in adapters
        ]

    def _path(self, number: int) -> Path:
        return Path(self._folder.name, str(number))

    def _written(self, number: int, adapter: Adapter) -> str:
        # Writes an adapter for vLLM into the folder `number`, over that of an earlier batch, and returns the folder
        from safetensors.torch import save_file

        folder = self._path(number)
        if not folder.exists():
            folder.mkdir()
            self._config.save_pretrained(str(folder))
        values = {name.replace(".default.", "."): value.contiguous() for name, value in adapter.items()}
        save_file(values, folder / "adapter_model.safetensors")
        return str(folder)


def _counted(text: Text, answer: Any) -> Array:
    logs = answer.prompt_logprobs  # Some are missing if vLLM reads its prefix cache.
    if len(logs) != len(text.ids) or any(text.ids[place] not in logs[place] for place in text.counted):
        raise EngineError(
            "vLLM must return a log-probability for every token of a record: does it read a cache of prefixes?"
        )
    return np.array([logs[place][text.ids[place]].logprob for place in text.counted])
