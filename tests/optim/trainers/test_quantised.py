"""A quantised base of a GGUF file, with adapters, inside TRL's Trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl", reason="the trl extra is not installed")
gguf = pytest.importorskip("gguf", reason="the pretrained extra is not installed")
peft = pytest.importorskip("peft", reason="the dev extra is not installed")

from datasets import Dataset  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from dpzero_theory.optim.trainers.trl import DPZeroSFTTrainer  # noqa: E402
from tests.optim.trainers.test_trl import ARGUMENTS, PRIVATE, TEXTS, WORDS, quiet, tokenizer  # noqa: E402

__all__ = ["quiet"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated"),  # TRL's own
    pytest.mark.filterwarnings("ignore:Could not find a config file"),  # peft looks for one beside the GGUF file
]
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "blk.0.attn_q", "self_attn.k_proj": "blk.0.attn_k", "self_attn.v_proj": "blk.0.attn_v",
    "self_attn.o_proj": "blk.0.attn_output", "mlp.gate_proj": "blk.0.ffn_gate", "mlp.up_proj": "blk.0.ffn_up",
    "mlp.down_proj": "blk.0.ffn_down", "input_layernorm": "blk.0.attn_norm",
    "post_attention_layernorm": "blk.0.ffn_norm",
}  # fmt: skip
"""The names of a Llama model's tensors in transformers and in GGUF files."""


def adapter() -> Any:
    return peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"])


def written(file: Path, width: int, matrices: str, others: str) -> Any:
    """Write a language model of one layer into a GGUF file, and return it.

    `matrices` is the type in which its matrices, but for the embedding, are stored, and `others` that of the rest.
    """
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1, "num_attention_heads": 2}
    dense = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), num_key_value_heads=2, **sizes))
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in {
        "context_length": 16, "embedding_length": width, "block_count": 1, "feed_forward_length": width,
        "head_count": 2, "head_count_kv": 2, "layer_norm_rms_eps": 1e-6, "vocab_size": len(WORDS),
    }.items():  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    for name, value in dense.state_dict().items():
        short = name.removesuffix(".weight").removeprefix("model.layers.0.")
        matrix = value.ndim == 2 and short != "model.embed_tokens"
        kind = gguf.GGMLQuantizationType[matrices if matrix else others]
        writer.add_tensor(f"{NAMES[short]}.weight", gguf.quants.quantize(value.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dense


@pytest.fixture
def base(tmp_path: Path) -> Any:
    """A language model of one layer whose matrices were stored in 8 bits in a GGUF file, as transformers reads it."""
    dense = written(tmp_path / "tiny.gguf", 32, "Q8_0", "F32")
    found = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    error = (found.lm_head.weight - dense.lm_head.weight).abs().max()
    assert 0 < error < 1e-3  # it was in 8 bits
    return found


def trainer(base: Any, folder: Path, save: str = "steps", **options: Any) -> DPZeroSFTTrainer:
    arguments = trl.SFTConfig(str(folder), **{**ARGUMENTS, "save_strategy": save, "save_steps": 2})
    data = Dataset.from_list(TEXTS)
    options = {"private": PRIVATE, "processing_class": tokenizer(), **options}
    return DPZeroSFTTrainer(base, arguments, train_dataset=data, **options)


def test_adapters_on_a_gguf_file_are_trained_and_saved(base: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="quantiz"):
        Trainer(base, TrainingArguments(str(tmp_path / "theirs"), use_cpu=True))
    made = trainer(base, tmp_path / "run", peft_config=adapter())
    assert made.train().global_step == PRIVATE["steps"]
    assert (tmp_path / "run" / "checkpoint-4" / "adapter_model.safetensors").exists()
    assert any(weight.abs().max() > 0 for name, weight in made.model.named_parameters() if "lora_B" in name)


def test_weights_that_could_not_be_saved_are_refused_before_they_are_trained(base: Any, tmp_path: Path) -> None:
    base.requires_grad_(False).model.norm.requires_grad_(True)
    with pytest.raises(ValueError, match=r"model must be one that can be saved, or save_strategy 'no'; got .*gguf"):
        trainer(base, tmp_path / "run")
    assert trainer(base, tmp_path / "run", save="no").train().global_step == PRIVATE["steps"]
