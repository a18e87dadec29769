"""Turn the formulas of `claims.toml` into MathML, which browsers draw without scripts or fonts, and its sentences
into HTML."""

import re
from html import escape

from latex2mathml.converter import convert

_LETTERS = {
    "alpha": "\u03b1", "gamma": "\u03b3", "delta": "\u03b4", "varepsilon": "\u03b5", "theta": "\u03b8",
    "kappa": "\u03ba", "lambda": "\u03bb", "mu": "\u03bc", "xi": "\u03be", "pi": "\u03c0", "sigma": "\u03c3",
    "tau": "\u03c4", "ell": "\u2113", "Delta": "\u0394",
}  # fmt: skip


def mathml(latex: str) -> str:
    """Return a <math display="block"> element for a formula in LaTeX. Raises ValueError for a LaTeX command that cannot
    be drawn."""
    found = str(convert(latex, display="block")).replace(
        "&#x029F5;",
        "&#x02216;",
        # of these two signs for the set difference, U+29F5 and U+2216, common fonts have only the second
    )
    if unknown := re.search(r"\\\w+", found):
        raise ValueError(f"formula must be LaTeX that can be drawn; got {unknown[0]}")
    return found


_WORDS = {**_LETTERS, "eps": "\u03b5", "epsilon": "\u03b5", "grad": "\u2207", "L-tilde": "L\u0303"}
_LABEL_PREFIX = "asp|thm|cor|lm|eq|tab|rem|rmk|algo|fig|app|sec"
_WORD = re.compile(rf"(?<![\w-])({'|'.join(_WORDS)})(?![\w-])")


def readable(text: str) -> str:
    """Return a sentence as HTML. The paper's labels become code, and plain-text mathematics (Greek letters, powers, <=)
    becomes readable."""
    text = text.replace("<=", "\u2264").replace(">=", "\u2265").replace("->", "\u2192").replace("sqrt(", "\u221a(")
    parts = re.split(rf"(\b(?:{_LABEL_PREFIX}):[\w.-]*\w)", escape(text, quote=False))
    return "".join(f"<code>{part}</code>" if k % 2 else _mathematics(part) for k, part in enumerate(parts))


def _mathematics(text: str) -> str:
    text = _WORD.sub(lambda m: _WORDS[m[1]], text)
    text = text.replace("\u2207 ", "\u2207")
    text = re.sub(r"\^(\{[^}]*\}|\([^)]*\)|\w+)", lambda m: f"<sup>{m[1].strip('{}()')}</sup>", text)
    return re.sub(r"\b([A-Za-z])_(\w+)", r"\1<sub>\2</sub>", text)
