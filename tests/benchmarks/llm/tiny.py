"""Tiny random models with tokenizers built from a few sentences, and small local files for every task."""

import json
import string
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from benchmarks.llm.models import LanguageModel
from benchmarks.llm.tasks import Task, names, task

TEXTS = [
    "a fine , moving film . It was great terrible bad okay good",
    "A man? Yes, no. Maybe No",
    "Description Entity Expression Human Location Number",
    "Title: x\nContext: y\nQuestion: z?\nAnswer: w\n Passage: Yes No",
]


def _corpus() -> list[str]:
    words = [
        option for kind in ("masked", "causal") for name in names(kind) for option in task(name).prompt(kind).options
    ]
    return [*TEXTS, *(" " + word.strip() for word in words), *words] * 20


def byte_level(special: list[str], start: str, end: str | None) -> Tokenizer:
    """Returns a tokenizer by byte pairs, as RoBERTa and OPT have, that is trained on a few sentences.

    It puts the token `start` before each text and the token `end`, unless that is None, after it. `special` has all
    special tokens; their ids are their places in the list.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}" if end else f"{start} $A",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {start, end or start}],
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """Returns a tokenizer whose vocabulary is the words of a few sentences, and all letters and digits.

    A vocabulary that is trained can differ from process to process; this one cannot.
    """
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    splitter = pre_tokenizers.BertPreTokenizer()
    words = {word for text in _corpus() for word, _ in splitter.pre_tokenize_str(text)}
    letters = [mark + letter for letter in string.ascii_letters + string.digits for mark in ("", "##")]
    vocabulary = dict.fromkeys([*special, *sorted(words), *letters])
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


@cache
def tokenizer(kind: str) -> Any:
    if kind == "masked":
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        return PreTrainedTokenizerFast(
            tokenizer_object=byte_level(special, "<s>", "</s>"),
            bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", unk_token="<unk>",
            pad_token="<pad>", mask_token="<mask>",
        )  # fmt: skip
    if kind == "causal":
        return PreTrainedTokenizerFast(
            tokenizer_object=byte_level(["<s>", "<pad>", "</s>", "<unk>"], "</s>", None),
            bos_token="</s>", eos_token="</s>", unk_token="</s>", pad_token="<pad>",
        )  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=word_piece(),
        cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]",
    )  # fmt: skip


def tiny(kind: str, seed: int = 0) -> LanguageModel:
    """Returns a model with two layers of width 16 and random weights in float32, which `seed` selects.

    `kind` is "masked" (RoBERTa), "causal" (OPT) or "encoder" (BERT). Dropout is that of transformers' defaults.
    """
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer(kind)), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    }  # fmt: skip
    torch.manual_seed(seed)
    module: Any
    if kind == "masked":
        module = RobertaForMaskedLM(RobertaConfig(intermediate_size=32, max_position_embeddings=300, **shape))
    elif kind == "causal":
        module = OPTForCausalLM(OPTConfig(ffn_dim=32, word_embed_proj_dim=16, max_position_embeddings=2048, **shape))
    else:
        module = BertModel(BertConfig(intermediate_size=32, max_position_embeddings=300, pad_token_id=0, **shape))
    module.config.use_cache = False
    return LanguageModel(module.eval(), tokenizer(kind), kind)


def llama(layers: int = 2) -> LanguageModel:
    """Returns a Llama of width 16 with random weights, which are the same at every call, and tied embeddings."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer("causal")), hidden_size=16, intermediate_size=24, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return LanguageModel(LlamaForCausalLM(config).eval(), tokenizer("causal"), "causal")


def in_its_place(monkeypatch: pytest.MonkeyPatch, folder: Path, layers: int = 2) -> LanguageModel:
    """Puts `llama` in the place of the pretrained model, whose hidden states are kept below `folder`; returns it."""
    found = llama(layers)
    monkeypatch.setattr("benchmarks.llm.top.load", lambda name, **_: found)
    monkeypatch.setattr("benchmarks.llm.top.cache", lambda: folder / "cache")
    monkeypatch.setattr("benchmarks.llm.tuned.pretrained_folder", lambda name: folder)
    return found


def phrases(folder: Path, count: int = 90) -> Path:
    """Writes SST-2's files into `folder`, where a phrase's sign is told by one word, and returns the folder."""
    for part in ("train", "test"):
        lines = [f"a {'fine' if i % 2 else 'bad'} film {chr(97 + i % 26)}{i} \t{i % 2}" for i in range(count)]
        (folder / f"sst2_{part}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return folder


WORDS = (("terrible", "sad", "dull"), ("great", "moving", "fine"))


def write_files(task: Task, folder: Path, count: int = 24) -> Path:
    """Writes a task's local files into `folder`, in the layout that tasks.toml names, and returns the folder.

    Each file has `count` records, and those that are held out for tests besides; classes take turns. The first word of
    a text is one of `WORDS[class % 2]`, so it tells the class where there are two.
    """
    for split in ("train", "test"):
        rows = [_row(task, index) for index in range(count + task.local.held_out)]
        text = _FORMATS[task.local.format](task, rows)
        (folder / getattr(task.local, split)).write_text(text, encoding="latin-1")
    return folder


def _row(task: Task, index: int) -> dict[str, Any]:
    label = index % len(task.values) if task.values else 0
    word = WORDS[label % 2][index // 2 % 3]
    row: dict[str, Any] = dict.fromkeys(task.fields.values(), f"{word} film" + " film" * (index % 3))
    return {**row, task.label: task.values[label][-1]}


def _tsv(task: Task, rows: list[dict[str, Any]]) -> str:
    return "".join("\t".join(cells) + "\n" for cells in [list(rows[0]), *(list(row.values()) for row in rows)])


def _label_first(task: Task, rows: list[dict[str, Any]]) -> str:
    (column,) = task.fields.values()
    fine = ":x" * (task.local.format == "trec")
    return "".join(f"{row[task.label]}{fine} {row[column]}\n" for row in rows)


def _jsonl(task: Task, rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


_FORMATS = {"sst2": _tsv, "tsv": _tsv, "label-first": _label_first, "trec": _label_first, "jsonl": _jsonl}
