"""The rooms of dpzero_theory and the imports between them, from the source.

A box is a part of the library, wider the more lines it has; an arrow goes to what a part imports, where no other
arrow says so already. Every arrow goes down: `tests/test_architecture.py` holds that.
"""

import ast
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from figures.style import FIGURES, PAGE, SERIES, save, use_style

LIBRARY = FIGURES.parent / "dpzero_theory"


def rooms() -> dict[str, tuple[int, set[str]]]:
    """Return for each part of the library (a top-level folder or module, by name) its number of lines, and the set of
    the other parts that it imports, imports inside functions included."""
    found: dict[str, tuple[int, set[str]]] = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        name = path.relative_to(LIBRARY).parts[0].removesuffix(".py")
        if name.startswith("__"):
            continue
        source = path.read_text()
        lines, imports = found.get(name, (0, set()))
        found[name] = lines + source.count("\n"), imports | _imported(source)
    return {name: (lines, imports & set(found) - {name}) for name, (lines, imports) in found.items()}


def _imported(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            head, _, rest = node.module.partition(".")
            if head == "dpzero_theory":
                names |= {rest.split(".")[0]} if rest else {alias.name for alias in node.names}
    return names


def floors(imports: dict[str, set[str]]) -> dict[str, int]:
    """Return the floor of each part: 0 for a part that imports no other, else one above the highest floor of those that
    it imports. Raises ValueError if imports go in a circle. imports: for each part the parts that it imports."""
    found: dict[str, int] = {}
    while len(found) < len(imports):
        ready = [name for name in imports if name not in found and imports[name] <= set(found)]
        if not ready:
            raise ValueError(f"imports must not go in a circle; got one among {sorted(set(imports) - set(found))}")
        for name in ready:
            found[name] = max((found[other] + 1 for other in imports[name]), default=0)
    return found


def direct(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return for each part those of its imports that do not follow from its other imports: a part is left out if
    another imported part imports it, perhaps by way of further parts. imports: for each part the parts that it imports,
    without circles."""

    def reached(name: str) -> set[str]:
        return imports[name].union(*(reached(other) for other in imports[name]))

    return {
        name: {one for one in others if not any(one in reached(other) for other in others - {one})}
        for name, others in imports.items()
    }


def draw(folder: Path) -> None:
    """Draw the parts of the library, those on the lowest floor at the bottom, and save the picture as house.png and
    house.pdf in `folder`."""
    use_style()
    found = rooms()
    imports = {name: others for name, (_, others) in found.items()}
    level = floors(imports)
    figure, axes = plt.subplots(figsize=(PAGE, 0.62 * PAGE))
    place: dict[str, tuple[float, float, float]] = {}
    for floor in range(max(level.values()) + 1):
        here = [name for name in found if level[name] == floor]
        widths = [0.55 + 0.024 * found[name][0] ** 0.5 for name in here]
        x = -(sum(widths) + 0.35 * (len(here) - 1)) / 2
        for name, width in zip(here, widths, strict=True):
            place[name] = (x + width / 2, float(floor), width)
            x += width + 0.35
    for name, (x, y, width) in place.items():
        box = FancyBboxPatch(
            (x - width / 2, y - 0.24), width, 0.48, boxstyle="round,pad=0.02,rounding_size=0.06",
            facecolor="white", edgecolor=SERIES[0].color, linewidth=1.2, zorder=2,
        )  # fmt: skip
        axes.add_patch(box)
        axes.text(x, y + 0.05, name, ha="center", va="center", fontsize=8, zorder=3)
        axes.text(
            x, y - 0.13, f"{found[name][0]:,} lines", ha="center", va="center", fontsize=5.5, color="0.4", zorder=3
        )
    for name, others in direct(imports).items():
        for other in others:
            (x, y, _), (to, below, _) = place[name], place[other]
            axes.add_patch(
                FancyArrowPatch(
                    (x, y - 0.26),
                    (to, below + 0.27),
                    arrowstyle="-|>",
                    mutation_scale=7,
                    linewidth=0.7,
                    color="0.45",
                    zorder=1,
                    connectionstyle="arc3,rad=0.0",
                )
            )
    axes.set_xlim(min(x - w for x, _, w in place.values()), max(x + w for x, _, w in place.values()))
    axes.set_ylim(-0.5, max(level.values()) + 0.5)
    axes.axis("off")
    save(figure, "house", folder)
