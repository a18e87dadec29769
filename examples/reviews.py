"""Sentences about films, drawn from a few words: they stand for your records."""

import random

WORDS = {0: ("dull", "tedious", "clumsy", "flat"), 1: ("moving", "fresh", "tender", "gripping")}
TOPICS = ("a house", "two sisters", "the sea", "a trial", "one summer", "a forger", "the war", "a choir", "an island")


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
