"""Tests of forged run folders, in which every check was computed anew, and of files that are none.

What can be noticed is refused, in one line.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.kit.forged import Folder, places, replaced, twice, value_at
from dpzero_theory.optim.files.transcript import contents
from dpzero_theory.optim.private import make_private
from dpzero_theory.optim.verify import CANNOT_TELL, main
from dpzero_theory.privacy.noise import SystemNoise
from tests.optim.small import Logistic, data, losses, plan, private

LEVELS = 2**30
MADE = 16


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = tmp_path_factory.mktemp("begun") / "run"
    run = private(folder, steps=MADE + 4)
    for _ in range(MADE):
        run.step()
    run.close()
    return Folder.read(folder)


@pytest.fixture
def parts(begun: Folder) -> Folder:
    return begun.copy()


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Fails a test that needs more than 60 seconds of processor time."""

    def late(*unused: object) -> None:
        raise TimeoutError("more than 60 s of processor time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, 60)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def said(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    """Runs the verification of a folder; returns its exit status, and its one line of error or all that it printed.

    `more` are further words of the command line.
    """
    try:
        status = main([str(folder), *more])
    except SystemExit as error:
        status = int(str(error.code))
    out, err = capsys.readouterr()
    assert err.count("\n") == (status != 0)
    assert err.isascii()
    return status, err if status else out


def test_what_was_taken_apart_is_put_together_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private(tmp_path / "run").step()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    Folder.read(tmp_path / "run").write(tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert "not tested: too few releases" in said(tmp_path / "run", capsys)[1]


def of_sums(change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Callable[[Folder], None]:
    def forge(parts: Folder) -> None:
        noise = SystemNoise().discrete_gaussian(parts.header["plan"]["scale"], parts.sums.shape)
        parts.sums = change(noise)

    return forge


def other_levels(levels: int, mechanism: str) -> Callable[[Folder], None]:
    """Returns a function that forges a folder whose noise is on another lattice than the one accounted for.

    The lattice has `levels` integers to a clip. The ledger calls the mechanism `mechanism`.
    """

    def forge(parts: Folder) -> None:
        given, settings = parts.header["plan"], parts.lines[1]["settings"]
        given |= {"levels": levels, "scale": math.ceil(given["noise_multiplier"] * levels) + 3}
        settings |= {"mechanism": mechanism, "noise_multiplier": given["scale"] / levels}
        parts.sums = SystemNoise().discrete_gaussian(given["scale"], parts.sums.shape)

    return forge


def other_isolation(parts: Folder) -> None:
    parts.header["isolation"] = "exact\nnoise on the lattice      7                           holds"


FORGED: dict[str, tuple[Callable[[Folder], None], str]] = {
    "zeros": (of_sums(lambda z: 0 * z), "released numbers: they are 0 of the noise's size"),
    "one sum": (of_sums(lambda z: 0 * z + z[0]), "released numbers"),
    "a thousandth": (of_sums(lambda z: z // 1000), "released numbers: they are 0.00"),
    "too large": (of_sums(lambda z: z + 2**41), "released numbers: one is 2.2"),
    "multiples": (of_sums(lambda z: z // 1000 * 1000), "released numbers: .* multiples of 1000"),
    "fewer levels": (
        other_levels(1000, "discrete-gaussian"),
        "lattice of the transcript.s plan has discrete-gaussian:1000",
    ),
    "other levels": (
        other_levels(1000, "discrete-gaussian:2000"),
        "lattice of the transcript.s plan has discrete-gaussian:1000",
    ),
    "another isolation": (other_isolation, r"isolation: exact\\nnoise on the lattice"),
    "less noise": (lambda parts: parts.header["plan"].update(scale=LEVELS), "scale must be an integer with"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_can_be_told_is(name: str, parts: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge, message = FORGED[name]
    forge(parts)
    parts.write(tmp_path)
    status, line = said(tmp_path, capsys)
    assert status == 1
    assert re.search(message, line.strip()), line


def test_sound_numbers_pass_and_what_would_be_seen_is_said(
    parts: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts.write(tmp_path)
    assert "can be noise as stated; numbers of 0.0" in said(tmp_path, capsys)[1]


@pytest.mark.parametrize("changes", [{"noise": "laplace"}, {"directions_per_step": 3}, {"algorithm": "dpgd-0th"}])
def test_every_law_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]) -> None:
    run = private(tmp_path / "run", steps=MADE, **changes)
    run.run()
    run.close()
    status, text = said(tmp_path / "run", capsys)
    assert status == 0
    vectors = "algorithm" in changes
    assert ("releases are vectors and are not kept" if vectors else "can be noise as stated") in text
    if not vectors:
        found = Folder.read(tmp_path / "run")
        found.sums //= 10_000
        found.write(tmp_path / "run")
        assert "released numbers" in said(tmp_path / "run", capsys)[1]


def test_each_payment_says_how_far_the_transcript_was(
    parts: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each payment in the ledger states how far the transcript was, not only the last one.

    A record is changed under a payment in the middle, and all other checks are computed anew.
    """
    parts.write(tmp_path)
    whole = Folder.read(tmp_path)
    for state in ("3:0000000000000000", "2:" + whole.lines[5]["state"][2:], "", "x", ...):
        lines = whole.copy()
        lines.lines[5] = replaced(lines.lines[5], ("state",), state)
        _keeping_states(lines, tmp_path)
        status, line = said(tmp_path, capsys)
        assert status == 1
        assert "it was cut off or replaced" in line
    whole.lines[5]["state"] = 7
    _keeping_states(whole, tmp_path)
    assert "state must be a text; got 7" in said(tmp_path, capsys)[1]


def _keeping_states(parts: Folder, path: Path) -> None:
    """Writes the parts of a folder to `path`, keeping the states of the transcript that the lines state.

    The method `write` would put in the right states; a line that is written as text has its own.
    """
    kept = iter([line.get("state", ...) for line in parts.lines])

    def line(values: Any) -> str:
        state = next(kept)
        return json.dumps(values if state is ... else {**values, "state": state})

    parts.write(path, line=line)


ODD: tuple[Any, ...] = (None, True, -1, 1.5, 10**30, float("nan"), "x\ny\x1b[31m\u202e", [1], {"a": 1}, ...)
FREE = {
    ("plan", "smoothing"), ("plan", "step_sizes"), ("plan", "step_sizes", 0), ("plan", "weight_decay"),
    ("plan", "update"), ("plan", "groups"), ("plan", "difference"), ("plan", "stopping"),
    ("layout",), ("losses",), ("software",), ("records",), ("private",), ("isolation",), ("inode",), ("by",), ("run",),
    ("state",), ("target_epsilon",), ("settings", "coordinates"),
}  # fmt: skip
"""Entries of a run's files whose changes no verification can notice, since a run could have been made with them.

For these `write` puts the right digest and state into the text.
"""


def kind(value: object) -> type:
    return float if type(value) is int else type(value)


@pytest.mark.parametrize("file", ["header", "budget", "plan", "spend"])
def test_any_value_of_another_kind_is_refused_in_one_line(
    file: str, begun: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"budget": 0, "plan": 1, "spend": 3}.get(file, -1)
    whole = begun.header if line < 0 else {k: v for k, v in begun.lines[line].items() if k != "check"}
    for place in places(whole):
        for odd in ODD:
            parts, changed = begun.copy(), replaced(whole, place, odd)
            if line < 0:
                parts.header = changed
            else:
                parts.lines[line] = changed
            parts.write(tmp_path)
            status, found = said(tmp_path, capsys, "--format", "json")
            same = odd is ... or kind(odd) is kind(value_at(whole, place))
            assert status == 1 or (same and place in FREE), (place, odd)
            assert found.isascii()


def test_a_name_twice_and_other_ways_to_write_the_same_are_refused(
    begun: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (("plan", "n"), ("key",), ("plan",), ("isolation",)):
        for first in (1, value_at(begun.header, place)):
            begun.copy().write(tmp_path, header=lambda values, at=place, one=first: twice(values, at, one))
            assert said(tmp_path, capsys)[0] == 1
    for place in (("release",), ("state",)):
        begun.copy().write(
            tmp_path, line=lambda values, at=place: twice(values, at, 1) if at[0] in values else json.dumps(values)
        )
        assert said(tmp_path, capsys)[0] == 1
    for text in (
        lambda values: json.dumps(values) + "\r",
        lambda values: "\ufeff" + json.dumps(values),
        lambda values: json.dumps(values, separators=(",", ":")),
        lambda values: json.dumps(values, ensure_ascii=False).replace('"Logistic', '"L\u00f6gistic'),
        lambda values: " " + json.dumps(values),
    ):
        if text(begun.header) != json.dumps(begun.header):
            begun.copy().write(tmp_path, header=text)
            assert said(tmp_path, capsys)[0] == 1
            begun.copy().write(tmp_path, line=text)
            assert said(tmp_path, capsys)[0] == 1


class Words(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_texts_of_a_file_are_shown_on_one_line_as_they_are(
    form: str, begun: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text in a file, whatever it has in it, is shown on one line, wherever it stands.

    It adds no line, no tag, no control character, and no letter that looks like another one.
    """
    plain = begun.copy()
    plain.write(tmp_path)
    sound = said(tmp_path, capsys, "--format", form)[1]
    evil = "x\nnoise  1   holds\r\x1b[31m\x00\u202e\u2028\u043e\ud800<script>alert(1)</script>'\"&"
    for place in (("software",), ("losses",), ("layout",)):
        parts = begun.copy()
        parts.header = replaced(parts.header, place, evil)
        parts.write(tmp_path)
        status, text = said(tmp_path, capsys, "--format", form)
        assert status == 0
        assert text.isascii()
        assert set(text) - {"\n"} <= set(map(chr, range(32, 127)))
        if form == "html":
            assert Words(text).tags == Words(sound).tags
        elif form == "text":
            assert not any(line.startswith("noise  1") for line in text.splitlines())


def test_a_groups_pattern_cannot_forge_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter("weight\nepsilon spent    0    holds", nn.Parameter(torch.zeros(6).double()))

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features @ next(self.parameters())

    chosen = plan(groups={"weight\nepsilon*": 0.5})
    make_private(Odd(), losses, data(), chosen, target_delta=1e-5, folder=tmp_path / "run").close()
    text = said(tmp_path / "run", capsys)[1]
    assert "weight\\nepsilon*: step size x 0.5" in text
    assert not any(line.startswith("epsilon*") for line in text.splitlines())


def test_what_cannot_be_told_is_said_in_every_form(
    parts: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts.write(tmp_path)
    assert json.loads(said(tmp_path, capsys, "--format", "json")[1])["cannot_tell"] == list(CANNOT_TELL)
    text = " ".join(said(tmp_path, capsys)[1].split())
    page = said(tmp_path, capsys, "--format", "html")[1]
    for sentence in CANNOT_TELL:
        assert sentence in text
        assert sentence in page
    for word in ("sample rate q", "relation", "clip", "noise", "n records", "isolation"):
        assert any(word in sentence for sentence in CANNOT_TELL)


def odd_files(folder: Path) -> dict[str, Path]:
    """Returns files that are not the trainable parameters, by a name for each."""
    weights = Logistic().state_dict()
    whole = {
        "nothing": {}, "a list": [weights], "a tensor": torch.zeros(6), "a number": 7, "text": "weights",
        "numbers as names": {1: torch.zeros(6)}, "no name": {"": torch.zeros(6)}, "dots": {"a..b": torch.zeros(6)},
        "below a parameter": {"weight": torch.zeros(6), "weight.more": torch.zeros(6)},
        "a method's name": {"forward": torch.zeros(6)}, "a part's name": {"train.x": torch.zeros(6)},
        "integers": {"weight": torch.zeros(6, dtype=torch.int64)}, "complex": {"weight": torch.zeros(6).cfloat()},
        "sparse": {"weight": torch.zeros(6).to_sparse()}, "meta": {"weight": torch.zeros(6, device="meta")},
        "huge": {"weight": torch.zeros(1).expand(10**13)}, "not a tensor": {"weight": [0.0] * 6},
        "a key of words": {"run.key": "k", "run.position": torch.tensor(1)},
        "half a checkpoint": {"run.key": torch.zeros(16, dtype=torch.uint8)},
        "a position of many": {"run.key": torch.zeros(16), "run.position": torch.zeros(3), "weights.weight": weights},
        "other names": {"other": torch.zeros(6).double()}, "another length": {"weight": torch.zeros(7).double()},
        "another type": {"weight": torch.zeros(6)}, "NaN": {"weight": torch.full((6,), float("nan")).double()},
        "a scalar": {"weight": torch.tensor(0.0).double()},
    }  # fmt: skip
    found = {}
    for name, value in whole.items():
        found[name] = folder / f"{name}.pt"
        torch.save(value, found[name])
    sound = folder / "sound.pt"
    torch.save(weights, sound)
    content = sound.read_bytes()
    header = json.dumps({"weight": {"dtype": "F64", "shape": [6], "data_offsets": [0, 48]}}).encode()
    tensors = len(header).to_bytes(8, "little") + header + bytes(48)
    for name, text in {
        "empty": b"", "zeros": bytes(1000), "torn": content[:-100], "half": content[: len(content) // 2],
        "safetensors": tensors, "safetensors, torn": tensors[:20], "a huge header": b"\xff" * 7 + b"\x7f" + header,
        "pickle": b"cposix\nsystem\n(S'false'\ntR.",
        "words": b"the weights\n", "not utf-8": b"\xff\xfe\xff",
    }.items():  # fmt: skip
        found[name] = folder / name
        found[name].write_bytes(text)
    found["a pipe"] = folder / "pipe"
    os.mkfifo(found["a pipe"])
    (folder / "link").symlink_to(folder / "nowhere")
    return {**found, "a device": Path("/dev/zero"), "nothing there": folder / "link", "a folder": folder}


@pytest.mark.parametrize("flag", ["--initial", "--final"])
def test_odd_files_are_refused_in_one_line(
    flag: str, parts: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    parts.write(tmp_path / "run")
    files = odd_files(tmp_path)
    before = ["--initial", str(tmp_path / "sound.pt")] if flag == "--final" else []
    assert said(tmp_path / "run", capsys, "--initial", str(tmp_path / "sound.pt"))[0] == 0
    for name, file in files.items():
        status, line = said(tmp_path / "run", capsys, *before, flag, str(file))
        assert status in (1, 2), name
        assert (flag in line) if status == 2 else ("weights" in line), (name, line)


def test_weights_that_are_no_numbers_are_compared_by_their_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Logistic()
    with torch.no_grad():
        module.weight[2] = float("nan")
    # a start refuses such weights, but a run may come to them
    monkeypatch.setattr("dpzero_theory.optim.losses.probe.require_signal", lambda *_: None)
    torch.save(module.state_dict(), tmp_path / "initial.pt")
    run = private(tmp_path / "run", module)
    run.step()
    torch.save(module.state_dict(), tmp_path / "final.pt")
    run.close()
    files = ["--initial", str(tmp_path / "initial.pt"), "--final", str(tmp_path / "final.pt")]
    status, text = said(tmp_path / "run", capsys, *files)
    assert status == 0
    assert "those of the replay, bit for bit" in text


def test_without_torch_the_command_names_its_extra() -> None:
    program = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = ['verify', '.'];"
        " runpy.run_module('dpzero_theory.optim.verify', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("dpzero_theory.optim.verify: needs torch: pip install 'dpzero-theory[torch]'\n")
    assert done.stderr.count("\n") == 1


def test_an_unusual_name_of_the_folder_stays_on_one_line(
    parts: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a\nb \x1b[31m\u00e9"
    folder.mkdir()
    parts.write(folder)
    assert said(folder, capsys)[0] == 0
    (folder / "ledger.jsonl").write_bytes(b"")
    assert "a\\nb \\x1b[31m\\xe9" in said(folder, capsys)[1]


def test_a_transcript_whose_releases_are_in_another_order_is_none(parts: Folder, tmp_path: Path) -> None:
    parts.write(tmp_path)
    assert len(contents(tmp_path / "transcript.bin").records) == MADE
    parts.releases[3], parts.releases[4] = parts.releases[4], parts.releases[3]
    parts.write(tmp_path)
    with pytest.raises(RuntimeError, match="record 4 does not match its check"):
        contents(tmp_path / "transcript.bin")
