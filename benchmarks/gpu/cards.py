"""Properties of GPUs (called cards here): what each can do by its data sheet, and how long work takes on it."""

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

_REACHED = 0.4
"""The share of a GPU's peak rates that work is assumed to reach. It is used for planning only, never for a
measurement."""


@dataclass(frozen=True)
class Card:
    """A GPU. It is recognised by `words`, all of which are in the name that the device gives itself.

    memory_gib is its memory. float64, float32 and half are its peak rates in TFLOP/s, bandwidth that of its memory in
    TB/s, all by its data sheet (cards.toml). The processor stands in this list as a card whose rates are 0.
    """

    words: tuple[str, ...]
    memory_gib: float
    float64: float = 0.0
    float32: float = 0.0
    half: float = 0.0
    bandwidth: float = 0.0


PROCESSOR = Card(("cpu",), float("inf"))


@dataclass(frozen=True)
class Work:
    """An amount of work: `seconds` that no GPU shortens (imports, launches, the processor's share), the operations in
    TFLOP by type (float64, float32, half), and `traffic`, the memory read and written, in TB."""

    seconds: float
    float64: float = 0.0
    float32: float = 0.0
    half: float = 0.0
    traffic: float = 0.0

    def on(self, card: Card) -> float:
        """Return an estimate of the seconds that the work takes on a card: `seconds`, and for each precision and for
        the traffic the amount over the share `_REACHED` of the card's peak rate, all added up as if one followed the
        other. What the card has the rate 0 for counts nothing."""
        parts = (
            (self.float64, card.float64), (self.float32, card.float32), (self.half, card.half),
            (self.traffic, card.bandwidth),
        )  # fmt: skip
        return self.seconds + sum(amount / (_REACHED * rate) for amount, rate in parts if rate)


@cache
def known() -> dict[str, Card]:
    """Return the cards of cards.toml by name. If the words of two cards match the same device, the one with more words
    comes first."""
    entries = tomllib.loads((Path(__file__).parent / "cards.toml").read_text())
    return {name: Card(**{**entry, "words": tuple(entry["words"])}) for name, entry in entries.items()}


def card_named(name: str, memory_gib: float) -> tuple[str, Card]:
    """Return the name and the properties of the card of a device, given the device's name and memory in GiB. Memory is
    always the given one; rates come from cards.toml. A device that is not in cards.toml is called "unknown", and each
    of its rates is the smallest that any known card has."""
    for label, card in known().items():
        if all(word in name for word in card.words):
            return label, replace(card, memory_gib=memory_gib)
    cards = known().values()
    slowest = {rate: min(getattr(card, rate) for card in cards) for rate in ("float64", "float32", "half", "bandwidth")}
    return "unknown", Card((name,), memory_gib, **slowest)
