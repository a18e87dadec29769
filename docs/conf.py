"""Sphinx's settings: the pages are MyST Markdown, the reference is built from the docstrings."""

import re
import sys
from pathlib import Path

import numpy as np

from dpzero_theory import __version__

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "dpzero_theory"
author = "dpzero_theory contributors"
copyright = "dpzero_theory contributors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
templates_path = ["_templates"]
html_theme = "furo"
html_title = "dpzero_theory"
FONT = '-apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif'
html_theme_options = {  # the look of dpzero_theory/templates/base.html, of which statements, audits and claims are made
    "light_css_variables": {
        "font-stack": FONT,
        "color-foreground-primary": "#1f2328",
        "color-foreground-secondary": "#59636e",
        "color-background-border": "#d1d9e0",
        "color-background-secondary": "#f6f8fa",
        "color-code-background": "#f6f8fa",
        "color-brand-primary": "#0072b2",
        "color-brand-content": "#0072b2",
        "color-brand-visited": "#0072b2",
    },
    "dark_css_variables": {
        "color-foreground-primary": "#e6edf3",
        "color-foreground-secondary": "#9198a1",
        "color-background-primary": "#0d1117",
        "color-background-secondary": "#151b23",
        "color-background-border": "#3d444d",
        "color-code-background": "#151b23",
        "color-brand-primary": "#58a6ff",
        "color-brand-content": "#58a6ff",
        "color-brand-visited": "#58a6ff",
    },
}
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_js_files = ["phone.js"]
default_role = "code"
smartquotes = False
nitpicky = False
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_use_rtype = False
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"


def _as_written(_app, _what, _name, _object, _options, lines):
    """Change the lines of a docstring, in place, so that reStructuredText shows it as it was written: an indented block
    (a formula, a table) outside the sections Args, Returns and so on stands as it is, and |x| is no markup."""
    found, in_section, shown = [], False, False
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        indented = paragraph.startswith("    ")
        in_section = bool(re.match(r"(Args|Attributes|Returns|Raises|Yields):\n", paragraph)) or (
            in_section and indented
        )
        if indented and not in_section:
            if not shown:
                found.append("::")
            shown = True
        else:
            shown = False
            parts = paragraph.split("`")
            paragraph = "`".join(part if i % 2 else part.replace("|", "\\|") for i, part in enumerate(parts))
        found.append(paragraph)
    lines[:] = "\n\n".join(found).split("\n")


def _modules_to_reference(app, included, _parent, content):
    """Change the text of an included file, `content[0]`, so that its links to modules of the library lead to their
    pages of the reference."""
    source = Path(app.srcdir).resolve()
    folder = (source / included).parent

    def page(match):
        module = (folder / match[1]).resolve().relative_to(source.parent)
        return "]: /reference/modules/" + ".".join(module.parts) + ".rst"

    elsewhere = r"(?!\S*(?:tests|benchmarks|paper_checks)/)"
    content[0] = re.sub(rf"\]: ({elsewhere}\S+)\.py$", page, content[0], flags=re.MULTILINE)


def _fields_once(_app, what, _name, member, skip, _options):
    """Leave out a class's fields as members of their own, where Sphinx finds a docstring by the value: fields of a
    NamedTuple, and those whose value is a class. The section Attributes has them."""
    return skip or type(member).__name__ == "_tuplegetter" or (what == "class" and member in (np.float64, np.int64))


def _fold_long_tables(_app, _page, content):
    """Change the text of a page, `content[0]`, so that a generated table with more than 12 lines is folded. The text
    before the table says what it shows."""

    def fold(match):
        lines = match[3].count("\n") - 2
        if lines <= 12:
            return match[0]
        summary = f"<summary>Show the table ({lines} lines)</summary>"
        return f"{match[1]}<details>{summary}\n\n{match[3]}\n</details>\n{match[4]}"

    content[0] = re.sub(r"(<!-- (\w+) -->\n\n)((?:\|.*\n)+)(\n<!-- /\2 -->)", fold, content[0])


def setup(app):
    import house  # beside this file

    house.draw(HERE / "_static")
    app.connect("autodoc-process-docstring", _as_written, priority=100)
    app.connect("autodoc-skip-member", _fields_once)
    app.connect("include-read", _modules_to_reference)
    app.connect("source-read", _fold_long_tables)
