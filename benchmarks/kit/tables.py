"""Tables in Markdown."""

from collections.abc import Sequence

__all__ = ["markdown"]


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table with one row for each of `lines`."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *lines])
