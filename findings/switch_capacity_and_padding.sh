#!/usr/bin/env bash
# Version: transformers 5.23.0 with torch 2.13.0
# Source: https://huggingface.co/docs/transformers/model_doc/switch_transformers (expert_capacity, router)
# Behaviour: an expert of a Switch Transformer takes expert_capacity tokens of each sequence, in their order, and skips the rest. Other records
#   of the batch are not counted, but padding is: pads on the left take places before the record's own tokens, attention_mask or not.
# Output: capacity 4, 12 tokens: alone and behind seven other records the outputs agree to 1e-6. With 8 pads on the left they differ by 1.7
#   (of 2.7), with 8 on the right by less than 1e-5; with capacity 64, where none is skipped, the pads do not matter.
# Matters: a test that puts records of equal lengths side by side finds such a model sound. Yet in left-padded batches the longest record decides
#   how many pads the others get, and so their losses. Pad on the right, evaluate records alone, or pad all to one length.
# Guessed: counted over the batch, so that records compete; seen: counted within a sequence, pads included.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib transformers==5.23.0 torch==2.13.0 numpy==2.4.6
HF_HUB_OFFLINE=1 PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY'
import torch
from transformers import SwitchTransformersConfig, SwitchTransformersEncoderModel


def made(capacity):
    torch.manual_seed(0)
    return SwitchTransformersEncoderModel(SwitchTransformersConfig(
        vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_heads=2, num_layers=2, num_sparse_encoder_layers=1,
        num_experts=4, expert_capacity=capacity, dropout_rate=0.0, router_jitter_noise=0.0)).eval()


torch.manual_seed(5)
record, others = torch.randint(3, 40, (1, 12)), torch.randint(3, 40, (7, 12))
pads = torch.zeros(1, 8, dtype=torch.long)


def moved(capacity):
    model = made(capacity)
    alone = model(input_ids=record).last_hidden_state[-1]

    def gap(tokens, mask, kept):
        return (model(input_ids=tokens, attention_mask=mask).last_hidden_state[-1, kept] - alone).abs().max().item()

    ones = torch.ones_like(record)
    return (
        gap(torch.cat([others, record]), None, slice(None)),
        gap(torch.cat([pads, record], 1), torch.cat([pads, ones], 1), slice(8, None)),
        gap(torch.cat([record, pads], 1), torch.cat([ones, pads], 1), slice(0, 12)),
    )


with torch.no_grad():
    small, large = moved(4), moved(64)
print("beside others, pads on the left, on the right: capacity 4", small, "capacity 64", large)
assert small[0] < 1e-5 and small[1] > 0.1 and small[2] < 1e-5 and max(large) < 1e-5
PY
