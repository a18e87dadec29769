"""Find the folders of committed rows on which the numbers of a documentation page rest, and the checks of the
paper's claims.

A block of a page (a paragraph, or a row of a table) names its rows by a command, a folder, a figure or the marker of a
table. A block that names none rests on the rows of the block before it in the same section.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

_NUMBER = re.compile(r"(?<![\w.^/-])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?%?(?![\w^])")
_CODE = re.compile(r"`[^`]*`")
_COMMAND = re.compile(r"benchmarks\.[\w.]*\w(?:[^`\n]* --preset \w+)?")
_NAMED = re.compile(r"(?:benchmarks/results/|figures/|figures\.)(\w+)|<!-- (\w+) -->|`(\w+)`")


@dataclass(frozen=True)
class Block:
    """A block (paragraph or row of a table) of a page that shows numbers: the number of its first line, the numbers as
    they are printed, and the names of the folders of rows that they come from, none if they come from no rows."""

    line: int
    numbers: tuple[str, ...]
    folders: tuple[str, ...]


def blocks(page: str, commands: Mapping[str, str], tables: Mapping[str, tuple[str, ...]]) -> Iterator[Block]:
    """Yield the blocks (paragraphs and rows of tables) of a Markdown page that show numbers.

    commands: for each folder of rows, the command that made it. tables: for each marker of a table, the folders that
    the table is made from. A command in a block stands for all folders that it made, unless the block names one of
    them.
    """

    def folders(text: str) -> list[str]:
        named: list[str] = []
        for place, marker, quoted in _NAMED.findall(text):
            near = [folder for folder in commands if place and f"{place}_".startswith(f"{folder}_")]
            named += near[-1:] or tables.get(marker, ()) or [folder for folder in commands if folder == quoted]
        for command in _COMMAND.findall(text):
            made = _made(command, commands)
            named += [] if set(made) & set(named) else made
        return list(dict.fromkeys(named))

    section: tuple[str, ...] = ()
    for block in _cut(page):
        if block.text.startswith("#"):
            section = ()
            continue
        section = tuple(folders(block.text)) or section
        numbers = tuple(_NUMBER.findall(_CODE.sub(" ", block.text)))
        if numbers:
            yield Block(block.line, numbers, section)


def _made(command: str, commands: Mapping[str, str]) -> list[str]:
    """Return the folders of rows that a command made, a text such as "benchmarks.accounting --preset rows" without
    "python -m". With a preset that some folder's command has these are that preset's folders; otherwise they are all
    folders that commands of the module made. commands: for each folder of rows, the command that made it."""
    module, *preset = command.split(" --preset ")
    of_module = [
        folder for folder, made in commands.items() if f"{made} ".startswith(f"python -m {module.split()[0]} ")
    ]
    return [folder for folder in of_module if preset and f"--preset {preset[0]}" in commands[folder]] or of_module


@dataclass(frozen=True)
class _Text:
    line: int
    text: str


def _cut(page: str) -> Iterator[_Text]:
    """Yield the paragraphs, headings and rows of tables of a page. Fenced and indented code is left out."""
    fenced, block = False, _Text(1, "")
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        if line.startswith("```"):
            fenced = not fenced
        apart = not line.strip() or line.startswith(("#", "|", "```"))
        if apart and block.text:
            yield block
            block = _Text(number, "")
        if fenced or (line.startswith(("    ", "```")) and not block.text):
            continue
        if line.startswith(("#", "|")):
            yield _Text(number, line)
        elif line.strip():
            block = replace(block, text=block.text + line + "\n") if block.text else _Text(number, line + "\n")


def claims(checks: Path, known: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return for each folder of rows the ids of the claims whose checks read it.

    A check reads a folder if the folder's name stands in quotes in the check's body; if no name does, it reads those
    whose names stand so above the first check of its module. checks: the folder of the modules with checks. known: a
    function that says whether a text is the name of a folder of rows.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(checks.glob("*.py")):
        preamble, *rest = re.split(r'^@check\("([\w-]+)"', path.read_text(), flags=re.MULTILINE)
        for name, body in zip(rest[::2], rest[1::2], strict=True):
            own = {word for word in re.findall(r'"(\w+)"', body) if known(word)}
            common = {word for word in re.findall(r'"(\w+)"', preamble) if known(word)}
            for folder in sorted(own or common):
                found.setdefault(folder, []).append(name)
    return found
