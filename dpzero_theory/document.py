"""One look for every HTML page: a document that needs nothing else, readable on a phone and on paper."""

import html
from collections.abc import Iterable

_STYLE = """
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto; padding: 1rem;
       max-width: {width}rem; }}
h1 {{ font-size: 1.5rem; margin: .5rem 0; }} h2 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
.verdict {{ padding: .75rem 1rem; border-left: .4rem solid #0072b2; background: #eef5fa; }}
.verdict.bad {{ border-color: #d55e00; background: #fdf1e8; }}
table {{ border-collapse: collapse; width: 100%; }} caption {{ text-align: left; color: #555; }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid #ddd;
         overflow-wrap: anywhere; }}
th {{ font-weight: 600; }} td .bad {{ color: #b34700; font-weight: 600; }}
svg {{ display: block; width: 100%; height: auto; }} svg text {{ font: 11px system-ui, sans-serif; }}
figure {{ margin: 0; }} figcaption, footer {{ color: #555; font-size: .9rem; }} footer {{ margin-top: 2rem; }}
"""


def document(title: str, parts: Iterable[str], *, command: str, width: int, style: str = "") -> str:
    """The page. parts: HTML below the title. command: what wrote it. width: in rem. style: more of CSS."""
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{html.escape(title)}</title><style>{_STYLE.format(width=width)}{style}</style>"
            f"<h1>{html.escape(title)}</h1>",
            *parts,
            f"<footer>Written by {html.escape(command)}</footer></html>",
        ]
    )
