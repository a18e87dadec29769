"""What a GPU (a card) can do, and how long work takes on it."""

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

_REACHED = 0.4
"""The share of its peak rates that work reaches. It is for planning only; no measurement uses it."""


@dataclass(frozen=True)
class Card:
    """words: all of them are in the device's name. The rates are those of the data sheet, see cards.toml; the processor
    is a card without rates."""

    words: tuple[str, ...]
    memory_gib: float
    float64: float = 0.0
    float32: float = 0.0
    half: float = 0.0
    bandwidth: float = 0.0


PROCESSOR = Card(("cpu",), float("inf"))


@dataclass(frozen=True)
class Work:
    """An amount of work. seconds: time that no card shortens (imports, launches, the processor's share). float64,
    float32, half: TFLOP by type. traffic: TB read and written."""

    seconds: float
    float64: float = 0.0
    float32: float = 0.0
    half: float = 0.0
    traffic: float = 0.0

    def on(self, card: Card) -> float:
        """The seconds that the work takes on a card."""
        parts = (
            (self.float64, card.float64), (self.float32, card.float32), (self.half, card.half),
            (self.traffic, card.bandwidth),
        )  # fmt: skip
        return self.seconds + sum(amount / (_REACHED * rate) for amount, rate in parts if rate)


@cache
def known() -> dict[str, Card]:
    """The cards of cards.toml by name; of two whose words match the same device, the one with more words comes
    first."""
    entries = tomllib.loads((Path(__file__).parent / "cards.toml").read_text())
    return {name: Card(**{**entry, "words": tuple(entry["words"])}) for name, entry in entries.items()}


def card_named(name: str, memory_gib: float) -> tuple[str, Card]:
    """The name and the card of a device. An unknown one is taken to be, in each respect, as slow as the slowest known
    one."""
    for label, card in known().items():
        if all(word in name for word in card.words):
            return label, replace(card, memory_gib=memory_gib)
    cards = known().values()
    slowest = {rate: min(getattr(card, rate) for card in cards) for rate in ("float64", "float32", "half", "bandwidth")}
    return "unknown", Card((name,), memory_gib, **slowest)
