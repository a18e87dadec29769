"""Makes self-contained HTML pages from Jinja templates. Jinja is installed with the extra `plot`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# The folder of the package's templates, with `base.html`, which all of them extend
_TEMPLATES = Path(__file__).parent / "templates"


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
        template: the file name of a template in `folder` that extends the package's `base.html`. Values are
            HTML-escaped.
        title: the heading of the page.
        width: the largest width of the text, in rem (CSS units of the page's font size).
        folder: the folder of the template; by default the package's own.
        filters: Jinja filters for the template, by name. Their results are escaped unless they are `markupsafe.Markup`.
        values: the template's other variables. `base.html` shows `command`, by default empty, at the foot of the page.

    Raises:
        ValueError: Jinja is not installed.
        jinja2.TemplateError: the template is missing or faulty, or uses a variable that is not given.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise ValueError("an HTML page needs jinja2: pip install 'dpzero-theory[plot]'") from None

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
