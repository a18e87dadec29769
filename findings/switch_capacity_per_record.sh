#!/usr/bin/env bash
# Version: transformers 5.23.0 with torch 2.13.0
# Source: https://huggingface.co/docs/transformers/model_doc/switch_transformers and .../model_doc/nllb-moe (expert_capacity)
# Behaviour: expert_capacity is another thing in two models. Switch Transformers count the tokens that an expert has taken within each
#   sequence; NLLB-MoE in training mode counts over the whole batch, and in evaluation mode drops nothing.
# Output: one record alone and behind seven others, capacity 4, 12 tokens: Switch differs by less than 1e-5, NLLB by 0.03 when training.
# Matters: mixture-of-experts models are taken to mix records by their capacity. One of these does, in training mode alone, and the other
#   does not; its padding on the left does take places of a record's own tokens. So test the model, not its family.
# Guessed: Switch counts over the batch too; seen: within a record.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib transformers==5.23.0 torch==2.13.0 numpy==2.4.6
HF_HUB_OFFLINE=1 PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY'
import torch
from transformers import NllbMoeConfig, NllbMoeModel, SwitchTransformersConfig, SwitchTransformersEncoderModel


def gap(model, **more):
    record, others = torch.randint(3, 40, (1, 12)), torch.randint(3, 40, (7, 12))
    with torch.no_grad():
        one, last = (model(input_ids=x, **{k: x for k in more}).last_hidden_state[-1] for x in (record, torch.cat([others, record])))
    return (one - last).abs().max().item()


torch.manual_seed(0)
switch = SwitchTransformersEncoderModel(SwitchTransformersConfig(
    vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_heads=2, num_layers=2, num_sparse_encoder_layers=1, num_experts=4,
    expert_capacity=4, dropout_rate=0.0, router_jitter_noise=0.0))
sides = {f"{side}_{what}": value for side in ("encoder", "decoder") for what, value in
         {"layers": 2, "attention_heads": 2, "ffn_dim": 16, "sparse_step": 1, "layerdrop": 0.0}.items()}
nllb = NllbMoeModel(NllbMoeConfig(
    vocab_size=60, d_model=16, num_experts=4, expert_capacity=4, dropout=0.0, attention_dropout=0.0,
    activation_dropout=0.0, router_dtype="float32", moe_token_dropout=0.0, second_expert_policy="all", **sides))
found = {name: gap(model.train(mode), **more) for name, model, mode, more in (
    ("switch, evaluating", switch, False, {}), ("switch, training", switch, True, {}),
    ("nllb, evaluating", nllb, False, {"decoder_input_ids": 0}), ("nllb, training", nllb, True, {"decoder_input_ids": 0}))}
print(found)
assert max(found["switch, evaluating"], found["switch, training"], found["nllb, evaluating"]) < 1e-5
assert found["nllb, training"] > 1e-3
PY
