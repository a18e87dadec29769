#!/usr/bin/env bash
# Version: trl 1.16.0 with transformers 5.23.0 and torch 2.13.0
# Source: https://huggingface.co/docs/trl/dpo_trainer#loss-functions (what each loss is said to be)
# Behaviour: of 15 values of DPOConfig.loss_type three give a batch a loss that is not the mean of its pairs' losses: aot and aot_unpaired sort
#   the rewards of the whole batch, and sft divides by all of the batch's tokens. bco_pair, which subtracted a running mean of the rewards in
#   earlier releases, now treats pairs one by one.
# Output: relative gap between a batch of four pairs and the mean of the four alone: aot 45%, aot_unpaired 10%, sft 6%; others below 1e-5.
# Matters: a private step clips each pair's own number. With a loss that mixes pairs one pair moves the numbers of the others, so that the
#   sensitivity is the batch's, not one clip. Evaluating pairs one by one does not give these losses' meaning either.
# Guessed: aot, aot_unpaired and bco_pair; seen: sft instead of bco_pair.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m venv lib  # datasets pickles by value what lies elsewhere
lib/bin/python -m pip install -q --no-compile trl==1.16.0 transformers==5.23.0 torch==2.13.0 datasets==5.2.0 accelerate==1.15.0
HF_HOME=$work HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1 TQDM_DISABLE=1 lib/bin/python -W ignore - <<'PY'
import copy

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

KINDS = (
    "sigmoid hinge ipo exo_pair nca_pair robust bco_pair sppo_hard aot aot_unpaired apo_zero apo_down discopop sft sigmoid_norm"
).split()
words = ["<pad>", "<eos>", "<unk>", "a", "b", "c", "d", "name", "good", "bad", "."]
inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
tokens = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
torch.manual_seed(0)
sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
start = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=32, initializer_range=0.5,
                                     pad_token_id=0, eos_token_id=1, **sizes))
pairs = [{"prompt": f"name {w}", "chosen": f" good {w} " * k + ".", "rejected": " bad ."} for k, w in enumerate("abcd", 1)]
mixing = {}
for kind in KINDS:
    smoothing = 0.1 if kind in ("robust", "exo_pair") else 0.0
    made = trl.DPOConfig("out", loss_type=[kind], report_to="none", use_cpu=True, beta=0.7, label_smoothing=smoothing)
    trainer = trl.DPOTrainer(copy.deepcopy(start), ref_model=copy.deepcopy(start), args=made,
                             train_dataset=Dataset.from_list(pairs), processing_class=tokens)
    with torch.no_grad():
        for weight in trainer.model.parameters():  # away from the reference
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
        trainer.model.eval()
        ready = [trainer.train_dataset[i] for i in range(4)]
        loss = lambda some: trainer.compute_loss(trainer.model, dict(trainer.data_collator(some))).item()
        alone = sum(loss([one]) for one in ready) / 4
        gap = abs(loss(ready) - alone) / abs(alone)
    if gap > 1e-5:
        mixing[kind] = round(gap, 3)
print("losses that mix pairs:", mixing)
assert set(mixing) == {"aot", "aot_unpaired", "sft"}
PY
