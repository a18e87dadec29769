"""The LaTeX of `claims.toml` as MathML, which browsers draw without scripts or fonts.

A small subset: groups, ^ and _, frac, sqrt, left/right, Greek letters, relations, mathrm/mathbb/tilde/hat/bar.
An unknown command raises ValueError, so a formula that would be drawn wrongly does not reach the page. The claims'
plain text has mathematics in ASCII, which `readable` turns into HTML.
"""

import re
from html import escape

__all__ = ["mathml", "readable"]

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\s+|.")

_LETTERS = {
    "alpha": "\u03b1", "gamma": "\u03b3", "delta": "\u03b4", "varepsilon": "\u03b5", "theta": "\u03b8",
    "kappa": "\u03ba", "lambda": "\u03bb", "mu": "\u03bc", "xi": "\u03be", "pi": "\u03c0", "sigma": "\u03c3",
    "tau": "\u03c4", "ell": "\u2113", "Delta": "\u0394",
}  # fmt: skip
_OPERATORS = {
    "leq": "\u2264", "geq": "\u2265", "nabla": "\u2207", "top": "\u22a4", "mid": "|", "setminus": "\u2216",
    "sum": "\u2211", "cdot": "\u22c5",
}  # fmt: skip
_SYMBOLS = {"-": "\u2212", "'": "\u2032"}
_FUNCTIONS = ("log", "exp", "min", "max", "cos")
_SPACES = {",": "0.17em", ";": "0.28em", "quad": "1em", " ": "0.3em"}
_ACCENTS = {"tilde": "~", "hat": "^", "bar": "\u00af"}
_DOUBLE = {"E": "\U0001d53c", "R": "\u211d", "P": "\u2119"}


def mathml(latex: str) -> str:
    """A <math display="block"> element for the formula. Raises ValueError for LaTeX outside the subset."""
    tokens = [token for token in _TOKEN.findall(latex) if not token.isspace()]
    parser = _Parser(tokens)
    body = parser.row("")
    return f'<math display="block"><mrow>{body}</mrow></math>'


def _bar(sign: str) -> str:
    return f'<mo stretchy="false" lspace="0" rspace="0">{sign}</mo>'


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.place = tokens, 0

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        if not token:
            raise ValueError("the formula ends too early")
        self.place += 1
        return token

    def row(self, end: str) -> str:
        """Everything up to the token `end` ('' for the end of the formula), which is consumed."""
        parts = []
        while self.peek() != end:
            parts.append(self.scripted())
        if end:
            self.next()
        return "".join(parts)

    def scripted(self) -> str:
        base, scripts = self.atom(), {}
        while self.peek() in ("^", "_"):
            mark = self.next()
            scripts[mark] = self.atom()
        if len(scripts) == 2:
            return f"<msubsup>{base}{scripts['_']}{scripts['^']}</msubsup>"
        for mark, script in scripts.items():
            tag = "msup" if mark == "^" else "msub"
            return f"<{tag}>{base}{script}</{tag}>"
        return base

    def atom(self) -> str:
        token = self.next()
        if token == "{":
            return f"<mrow>{self.row('}')}</mrow>"
        if token.startswith("\\"):
            return self.command(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token == "|":
            return _bar("|")
        stretch = ' stretchy="false"' if token in "()[]" else ""
        return f"<mo{stretch}>{escape(_SYMBOLS.get(token, token))}</mo>"

    def command(self, name: str) -> str:
        if name in _LETTERS:
            return f"<mi>{_LETTERS[name]}</mi>"
        if name in _OPERATORS:
            return f"<mo>{_OPERATORS[name]}</mo>"
        if name in _FUNCTIONS:
            return f"<mi>{name}</mi><mo>&#x2061;</mo>"
        if name in _SPACES:
            return f'<mspace width="{_SPACES[name]}"/>'
        if name in _ACCENTS:
            return f'<mover accent="true">{self.atom()}<mo>{_ACCENTS[name]}</mo></mover>'
        if name in "{}":
            return f'<mo stretchy="false">{name}</mo>'
        if name == "Vert":
            return _bar("&#x2016;")
        if name == "frac":
            return f"<mfrac>{self.atom()}{self.atom()}</mfrac>"
        if name == "sqrt":
            return f"<msqrt>{self.atom()}</msqrt>"
        if name == "mathrm":
            self.expect("{")
            return f'<mi mathvariant="normal">{self.letters()}</mi>'
        if name == "mathbb":
            self.expect("{")
            return f"<mi>{_DOUBLE[self.letters()]}</mi>"
        if name == "left":
            opening = self.next().removeprefix("\\")
            body = self.row("\\right")
            closing = self.next().removeprefix("\\")
            return f"<mrow><mo>{escape(opening)}</mo>{body}<mo>{escape(closing)}</mo></mrow>"
        raise ValueError(f"unknown LaTeX command \\{name}")

    def expect(self, token: str) -> None:
        if self.next() != token:
            raise ValueError(f"{token} expected")

    def letters(self) -> str:
        text = ""
        while (token := self.next()) != "}":
            text += token
        return text


_WORDS = {**_LETTERS, "eps": "\u03b5", "epsilon": "\u03b5", "grad": "\u2207", "L-tilde": "L\u0303"}
_LABEL_PREFIX = "asp|thm|cor|lm|eq|tab|rem|rmk|algo|fig|app|sec"
_WORD = re.compile(rf"(?<![\w-])({'|'.join(_WORDS)})(?![\w-])")


def readable(text: str) -> str:
    """Escaped, the paper's labels in code face, and plain-text mathematics made readable: Greek, powers, <=."""
    text = text.replace("<=", "\u2264").replace(">=", "\u2265").replace("->", "\u2192").replace("sqrt(", "\u221a(")
    parts = re.split(rf"(\b(?:{_LABEL_PREFIX}):[\w.-]*\w)", escape(text, quote=False))
    return "".join(f"<code>{part}</code>" if k % 2 else _mathematics(part) for k, part in enumerate(parts))


def _mathematics(text: str) -> str:
    text = _WORD.sub(lambda m: _WORDS[m[1]], text)
    text = text.replace("\u2207 ", "\u2207")
    text = re.sub(r"\^(\{[^}]*\}|\([^)]*\)|\w+)", lambda m: f"<sup>{m[1].strip('{}()')}</sup>", text)
    return re.sub(r"\b([A-Za-z])_(\w+)", r"\1<sub>\2</sub>", text)
