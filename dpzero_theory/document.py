"""Makes HTML pages that need no other file, all with one design: Jinja templates that extend `templates/base.html`.

Jinja belongs to the extra `plot`. A page is returned as a string; nothing is written.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
        template: the name of a file in `folder`, a template that extends `base.html`. All values are escaped unless the
            template says otherwise.
        title: the heading of the page.
        width: the largest width of the text, in rem.
        folder: the folder of the template.
        filters: the template's filters, by name; what they return is escaped unless it is a `markupsafe.Markup`.
        values: the template's other variables. The variable `command`, by default empty, is shown at the foot of the
            page.

    Raises:
        ValueError: Jinja is not installed.
        jinja2.TemplateError: the template is missing, is faulty, or uses a variable that is not given.
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
