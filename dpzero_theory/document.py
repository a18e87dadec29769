"""Makes HTML pages that need no other file, all with one design, and pictures that scale with the page.

Pages are Jinja templates that extend `templates/base.html`; pictures are drawn by matplotlib as SVG. Both packages
belong to the extra `plot`.
"""

import io
import re
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpzero_theory import check

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, YELLOW, GREY = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#888888"
"""Colours that colour-blind readers can tell apart, on white and on black (Okabe and Ito)."""
_TEMPLATES = Path(__file__).parent / "templates"
"""The folder of `base.html`, the common design of all pages, and of the library's own templates."""


def document(
    template: str,
    *,
    title: str,
    width: int,
    folder: Path = _TEMPLATES,
    filters: Mapping[str, Callable[[Any], str]] | None = None,
    **values: Any,
) -> str:
    """Fill in a Jinja template and return the HTML page as a string.

    Args:
        template: the name of a file in `folder`, which extends `base.html`. All values are escaped unless it says
            otherwise.
        title: the heading of the page.
        width: the largest width of the text, in rem.
        folder: the folder of the template.
        filters: the template's filters, by name; what they return is escaped unless it is a `markupsafe.Markup`.
        values: the template's other variables, of which a missing one raises jinja2's UndefinedError. `command` is
            shown at the foot of the page.

    Raises:
        ValueError: Jinja is not installed.
    """
    check.installed("an HTML page", "jinja2", "plot")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals["command"] = ""
    environment.filters |= filters or {}
    return environment.get_template(template).render(title=title, width=width, **values)


def picture(draw: Callable[["Axes"], None], *, label: str, height: float = 2.9) -> str:
    """Draw a picture with one matplotlib plot and return it as an SVG element, for a page of HTML.

    Args:
        draw: a function that plots into the given matplotlib axes and labels them.
        label: what the picture shows, for readers who cannot see it.
        height: the height in inches; the width is 5.6 inches.

    Raises:
        ValueError: matplotlib is not installed.
    """
    check.installed("a picture", "matplotlib", "plot")
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    plain: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "dpzero_theory",
        "font.family": "sans-serif",
        "axes.edgecolor": GREY,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "grid.color": GREY,
        "legend.frameon": False,
    }
    with mpl.rc_context(plain):
        figure = Figure(figsize=(5.6, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label, quote=True)}" ', 1)
