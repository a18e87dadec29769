"""Draws pictures of the numbers that an audit's checks saw, each with a caption that explains its marks."""

from collections import Counter
from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from dpzero_theory.document import BLUE, ORANGE, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Evidence = dict[str, Any]
_HISTOGRAM_BINS = 24  # The number of bars in the histogram of the scores of the audit's attack


def _noise_law(axes: "Axes", evidence: Evidence) -> str:
    seen = evidence["quantiles"]
    shares = [0.005 + 0.99 * k / (len(seen) - 1) for k in range(len(seen))]
    claimed = [NormalDist().inv_cdf(share) for share in shares]
    axes.axline((0, 0), slope=1, color=ORANGE, linestyle="--")
    axes.plot(claimed, seen, ".", color=BLUE)
    axes.set(xlabel="quantile of the claimed Gaussian", ylabel="seen")
    return "Blue: quantiles of the noise, in units of the claimed standard deviation. Dashes: where all is as claimed."


def _noise_size(axes: "Axes", evidence: Evidence) -> str:
    worlds = evidence["worlds"]
    axes.axhline(1, color=ORANGE, linestyle="--")
    axes.plot(range(1, len(worlds) + 1), list(worlds.values()), ".", color=BLUE)
    axes.set(xlabel="data and settings, as listed", ylabel="noise seen / claimed")
    axes.set_ylim(0, 1.05 * max([1.3, *worlds.values()]))
    names = ", ".join(f"{k} {name}" for k, name in enumerate(worlds, start=1))
    return f"Blue: standard deviation of the noise over the claimed one; {names}. Dashes: as claimed."


def _sensitivity(axes: "Axes", evidence: Evidence) -> str:
    shares = [moved / allowed for moved, allowed in evidence["moves"]]
    axes.axhline(1, color=ORANGE, linestyle="--")
    axes.plot(range(1, len(shares) + 1), shares, ".", color=BLUE)
    axes.set(xlabel="neighbour tried", ylabel="largest move / allowed")
    axes.set_ylim(0, max(1.2, 1.05 * max(shares)))
    return "Blue: how far one exchanged or removed record moves a step, over what is allowed. Dashes: the limit."


def _batches(axes: "Axes", evidence: Evidence) -> str:
    counts: Counter[int] = Counter(evidence["sizes"])
    axes.bar(list(counts), list(counts.values()), color=BLUE, alpha=0.6)
    axes.axvline(evidence["expected"], color=ORANGE, linestyle="--")
    axes.set(xlabel="records in a batch", ylabel="batches")
    return "Blue: batches of each size. Dashes: the (expected) size that is claimed."


def _attack(axes: "Axes", evidence: Evidence) -> str:
    first, second = evidence["first"], evidence["second"]
    span = (min(*first, *second), max(*first, *second))
    axes.hist(first, bins=_HISTOGRAM_BINS, range=span, color=BLUE, alpha=0.6)
    axes.hist(second, bins=_HISTOGRAM_BINS, range=span, color=ORANGE, alpha=0.6)
    axes.set(xlabel="score of a step, in claimed distances", ylabel="steps")
    needed = ", ".join(f"{share}: {runs or 'over four million'}" for share, runs in evidence["pairs_to_see"].items())
    tail = f" Pairs of steps that would refute the claim, by the share of the noise that is there: {needed}."
    seen = "Blue and orange: scores of steps on the two data sets; apart where a step betrays which."
    return seen + (tail if needed else "")


class _Plot(NamedTuple):
    """How the evidence of one check is drawn.

    `label` is the picture's alternative text. `needs` is the key of the evidence without which there is no picture.
    `draw` draws the evidence into the axes and returns the caption.
    """

    label: str
    needs: str
    draw: Callable[["Axes", Evidence], str]


PLOTS = {
    "noise-law": _Plot("quantiles of the noise", "quantiles", _noise_law),
    "noise-size": _Plot("the standard deviation of the noise in each world", "worlds", _noise_size),
    "sensitivity": _Plot("how far each neighbour moves a step", "moves", _sensitivity),
    "batches": _Plot("sizes of batches", "sizes", _batches),
    "attack": _Plot("scores of the attack on two data sets", "first", _attack),
}
"""The picture of each check that has one, by the check's name."""


def plot(name: str, evidence: Evidence) -> tuple[str, str] | None:
    """Returns a picture of what one check saw, as SVG, and its caption; None where it has no picture or no evidence.

    `name` is the name of the check, and `evidence` are the numbers of its verdict (`Verdict.evidence`).
    """
    kind = PLOTS.get(name)
    if kind is None or not evidence.get(kind.needs):
        return None
    captions: list[str] = []
    drawn = picture(lambda axes: captions.append(kind.draw(axes, evidence)), label=kind.label)
    return drawn, captions[0]
