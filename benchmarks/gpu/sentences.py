"""Made-up sentences for the preset `smoke`, which shows that the language-model benchmarks run, and nothing about
language."""

from pathlib import Path

_SUBJECTS = ("film", "plot", "cast", "ending", "music", "script", "scene", "story")
_WORDS = (("dull", "sad", "weak", "slow"), ("fine", "moving", "bright", "warm"))
_CLASSES = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
_TRAIN, _TEST, _QUESTIONS = 240, 48, 740


def write(folder: Path) -> Path:
    """Write files in the formats of the data sets SST-2 and TREC into `folder`, with the same contents at each call,
    and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", _TRAIN), ("test", _TEST)):
        lines = [f"the {_SUBJECTS[i // 2 % 8]} is {_WORDS[i % 2][i // 16 % 4]} {i}\t{i % 2}" for i in range(count)]
        (folder / f"sst2_{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    lines = [f"{_CLASSES[i % 6]}:other What is the {_SUBJECTS[i // 6 % 8]} of {i} ?" for i in range(_QUESTIONS)]
    (folder / "trec_train.label").write_text("\n".join(lines) + "\n")
    return folder
