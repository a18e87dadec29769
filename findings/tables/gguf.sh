#!/usr/bin/env bash
# Version: transformers 5.23.0, gguf 0.19.0, accelerate 1.15.0 and torch 2.13.0
# Source: https://huggingface.co/docs/transformers/gguf and https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
# Output: the table "What a GGUF base becomes" of docs/results/others.md, from a llama of one layer that is written in each format; ends with
#   another status than 0 if a row differs.
set -euo pipefail
page=$(realpath "$(dirname "$0")/../../docs/results/others.md")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0
PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY' 2>err | tee rows.md
import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WIDTH = 256
NAMES = {
    "model.embed_tokens": "token_embd", "input_layernorm": "blk.0.attn_norm", "post_attention_layernorm": "blk.0.ffn_norm",
    "self_attn.q_proj": "blk.0.attn_q", "self_attn.k_proj": "blk.0.attn_k", "self_attn.v_proj": "blk.0.attn_v",
    "self_attn.o_proj": "blk.0.attn_output", "mlp.gate_proj": "blk.0.ffn_gate", "mlp.up_proj": "blk.0.ffn_up",
    "mlp.down_proj": "blk.0.ffn_down", "model.norm": "output_norm", "lm_head": "output",
}
torch.manual_seed(0)
dense = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=WIDTH, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=False,
    )
)


def packed(values, kind):
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:  # some formats are only read by this package: any bytes will do
        block, size = gguf.GGML_QUANT_SIZES[kind]
        return np.random.default_rng(0).integers(0, 100, (WIDTH, WIDTH // block * size)).astype(np.uint8)


def written(kind):
    """Write the model, its matrices in this format. Returns the numbers that the file has for its last matrix."""
    writer = gguf.GGUFWriter("model.gguf", "llama")
    for name, number in {
        "context_length": 16, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": WIDTH, "head_count": 2,
        "head_count_kv": 2, "layer_norm_rms_eps": 1e-6, "vocab_size": WIDTH,
    }.items():
        getattr(writer, f"add_{name}")(number)
    for name, value in dense.state_dict().items():
        own = kind if value.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored = packed(value.numpy(), own)
        writer.add_tensor(f"{NAMES[name.removesuffix('.weight').removeprefix('model.layers.0.')]}.weight", stored, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return torch.tensor(gguf.quants.dequantize(stored, kind))


def refused(call):
    try:
        call()
    except (ValueError, NotImplementedError):
        return "refused"
    return "yes"


def answers(kind):
    """Return what becomes of the model in this format, in the order of the questions below."""
    numbers = written(kind)
    loaded = {dtype: AutoModelForCausalLM.from_pretrained(".", gguf_file="model.gguf", dtype=dtype) for dtype in (None, "auto", torch.bfloat16)}
    (found,) = {str(loaded[dtype].lm_head.weight.dtype).removeprefix("torch.") for dtype in (None, "auto")}
    model, half = loaded[None], loaded[torch.bfloat16].lm_head.weight
    copy = LlamaForCausalLM(LlamaConfig(**{key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}))
    copy.load_state_dict(model.state_dict())
    return (
        found,
        "to the bit" if torch.equal(model.lm_head.weight, numbers) else "no",
        "rounds them once" if torch.equal(half, numbers.bfloat16()) else "no",
        "yes" if model.is_quantized else "no",
        refused(lambda: Trainer(model, TrainingArguments("out", use_cpu=True))),
        refused(lambda: model.dequantize()),
        refused(lambda: model.save_pretrained("saved")),
        refused(lambda: copy.save_pretrained("copy")),
    )


QUESTIONS = (
    'type in memory, without `dtype` and with `"auto"`',
    "are the numbers those that the file stands for?",
    "what does `dtype=torch.bfloat16` do to them?",
    "does the model count as quantised?",
    "does transformers' own Trainer take it?",
    "`dequantize()`",
    "can it be saved?",
    "can a new model be saved that was given its weights?",
)
FORMATS = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_0", "Q4_1", "Q4_K", "Q4_0", "IQ4_NL")
bits = [8 * size / block for block, size in (gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] for name in FORMATS)]
assert (max(bits), min(bits)) == (32, 4.5)
(same,) = {answers(gguf.GGMLQuantizationType[name]) for name in FORMATS}
for question, answer in zip(QUESTIONS, same):
    print(f"| {question} | {answer} |")
PY
! grep -vxFf "$page" rows.md
