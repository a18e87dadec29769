"""Bases that bitsandbytes has quantised, with adapters, inside TRL's Trainer, on a processor."""

from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl", reason="the trl extra is not installed")
peft = pytest.importorskip("peft", reason="the dev extra is not installed")
bitsandbytes = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM  # noqa: E402

from dpzero_theory.optim.trainers.trl import DPZeroSFTConfig, DPZeroSFTTrainer  # noqa: E402
from tests.optim.trainers.test_trl import ARGUMENTS, PRIVATE, TEXTS, WORDS, quiet, tokenizer  # noqa: E402

__all__ = ["quiet"]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # TRL's own


def trainer(folder: Path, **bits: Any) -> DPZeroSFTTrainer:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    dense = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), num_key_value_heads=2, **sizes))
    dense.save_pretrained(folder / "base")
    config = BitsAndBytesConfig(**bits)
    base = AutoModelForCausalLM.from_pretrained(
        folder / "base", quantization_config=config, device_map="cpu", dtype=torch.float32
    )
    with torch.no_grad():  # a layer in 4 bits repacks itself when it is first run on a processor
        base.eval()(input_ids=torch.zeros(1, 2, dtype=torch.long))
    return DPZeroSFTTrainer(
        base, DPZeroSFTConfig(str(folder / "run"), **{**ARGUMENTS, "save_strategy": "steps", "save_steps": 2}),
        train_dataset=Dataset.from_list(TEXTS), processing_class=tokenizer(),
        private={**PRIVATE, "isolation": "exact", "micro_batch": 1},
        peft_config=peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"]),
    )  # fmt: skip


@pytest.mark.parametrize(
    "bits",
    [
        {"load_in_4bit": True},
        {"load_in_8bit": True, "llm_int8_threshold": 0.0},
    ],
    ids=str,
)
def test_adapters_on_a_quantised_base_are_trained_and_saved(bits: dict[str, Any], tmp_path: Path) -> None:
    made = trainer(tmp_path, **bits)
    kinds = {type(part).__name__ for part in made.model.modules()}
    assert kinds & {"Linear4bit", "Linear8bitLt"}
    assert made.train().global_step == PRIVATE["steps"]
    assert (tmp_path / "run" / "checkpoint-4" / "adapter_model.safetensors").exists()
    assert any(weight.abs().max() > 0 for name, weight in made.model.named_parameters() if "lora_B" in name)


def test_the_threshold_of_outliers_mixes_records_and_is_refused(tmp_path: Path) -> None:
    layer = bitsandbytes.nn.Linear8bitLt(8, 4, bias=False, has_fp16_weights=False, threshold=6.0)
    layer.weight = bitsandbytes.nn.Int8Params(torch.linspace(-1, 1, 32).view(4, 8), requires_grad=False)
    layer, x = layer.to("cpu").eval(), torch.linspace(-1, 2, 24).view(3, 1, 8)
    others = x.clone()
    others[1:, :, 3] = 20.0
    assert not torch.equal(layer(x)[0], layer(others)[0])
    with pytest.raises(
        ValueError, match=r"^module must keep records apart; got .*proj.* in 8 bits .*threshold = 6, by"
    ):
        trainer(tmp_path, load_in_8bit=True).train()
