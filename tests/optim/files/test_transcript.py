import hashlib
import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpzero_theory.optim.files.replay import replay, weights_of
from dpzero_theory.optim.files.transcript import DamagedRecordError, Header, Transcript, TranscriptError, read
from tests.optim.small import Logistic, plan

PLAN = plan()
FINGERPRINT = weights_of(Header(PLAN, "07" * 16, "", "nearest"), Logistic()).fingerprint()
HEADER = Header(PLAN, "07" * 16, FINGERPRINT, "nearest")


def written(path: Path, count: int, header: Header = HEADER) -> bytes:
    with Transcript.create(path, header) as transcript:
        for release in range(count):
            transcript.append(release, np.array([(-1) ** release * 10**12 * 2**release]))
    return path.read_bytes()


def test_a_step_takes_twenty_bytes_in_the_stated_format(tmp_path: Path) -> None:
    """A step takes twenty bytes of the transcript, in the stated format.

    They are read by hand, as someone without this package would.
    """
    content = written(tmp_path / "t", 3)
    header, _, records = content.partition(b"\n")
    assert json.loads(header)["plan"]["n"] == PLAN.n
    assert len(records) == 3 * 20
    check = hashlib.sha256(header + b"\n").digest()
    for release in range(3):
        record = records[20 * release :][:20]
        check = hashlib.sha256(check + record[:12]).digest()[:8]
        assert struct.unpack("<Iq", record[:12]) == (release, (-1) ** release * 10**12 * 2**release)
        assert record[12:] == check


@pytest.mark.parametrize("steps", [0.05, [0.1 / (t + 1) for t in range(8)]])
def test_headers_survive_unchanged(tmp_path: Path, steps: float | list[float]) -> None:
    header = replace(HEADER, plan=replace(PLAN, step_sizes=tuple(steps) if isinstance(steps, list) else (steps,)))
    written(tmp_path / "t", 0, header)
    with Transcript.open(tmp_path / "t") as transcript:
        assert transcript.header == header


def test_every_torn_end_is_cut_and_writing_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t"
    whole = written(path, 3)
    for kept in range(len(whole) - 19, len(whole)):
        path.write_bytes(whole[:kept])
        with Transcript.open(path) as transcript:
            assert [record.release for record in transcript.records()] == [0, 1]
            transcript.append(2, np.array([4 * 10**12]))
        assert path.read_bytes() == whole


def test_a_flipped_bit_in_the_last_record_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "t"
    whole = written(path, 3)
    for place in range(len(whole) - 20, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 16
        path.write_bytes(changed)
        with pytest.raises(TranscriptError, match="record 2 does not match its check") as found:
            Transcript.open(path)
        assert isinstance(found.value, DamagedRecordError)
        assert (found.value.whole, found.value.size) == (2, len(whole) - 20)
        assert path.read_bytes() == changed


def test_an_interrupted_write_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    whole = written(path, 1)
    with Transcript.open(path) as transcript:
        monkeypatch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            transcript.append(1, np.array([7]))
        monkeypatch.undo()
        with pytest.raises(TranscriptError, match="a write failed: open it again"):
            transcript.append(2, np.array([7]))
    with Transcript.open(path) as transcript:
        assert [record.release for record in transcript.records()] == [0, 1]
    assert path.read_bytes()[: len(whole)] == whole


def test_releases_only_go_up_to_the_last(tmp_path: Path) -> None:
    for releases in ((1, 1), (1, 0), (0, PLAN.steps)):
        path = tmp_path / str(releases)
        with Transcript.create(path, HEADER) as transcript:
            for release in releases:
                transcript.append(release, np.array([7]))
        with pytest.raises(TranscriptError, match="record 1 does not match"):
            read(path)


def test_any_other_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    whole = written(path, 3)
    for place in range(len(whole) - 20):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(TranscriptError):
            Transcript.open(path)
    path.write_bytes(whole[:-40] + whole[-20:] + whole[-40:-20])
    with pytest.raises(TranscriptError, match="record 1 does not match"):
        Transcript.open(path)


def test_replay_moves_by_the_released_averages(tmp_path: Path) -> None:
    written(tmp_path / "t", 3)
    module, by_hand = Logistic(), Logistic()
    assert replay(tmp_path / "t", module) == HEADER
    weights = weights_of(HEADER, by_hand)
    for release in range(3):
        average = (-1) ** release * 10**12 * 2**release * (PLAN.clip / PLAN.levels / 40)
        weights.move_([(release, -0.05 * average)])
    torch.testing.assert_close(module.weight, by_hand.weight, rtol=1e-14, atol=0)
    assert module.weight.abs().min() > 0


def test_replay_needs_the_initial_weights(tmp_path: Path) -> None:
    written(tmp_path / "t", 1)
    module = Logistic()
    module.weight.data += 1e-9
    with pytest.raises(TranscriptError, match="weights must have fingerprint"):
        replay(tmp_path / "t", module)


def test_an_existing_transcript_is_not_overwritten(tmp_path: Path) -> None:
    before = written(tmp_path / "t", 1)
    with pytest.raises(FileExistsError):
        Transcript.create(tmp_path / "t", HEADER)
    assert (tmp_path / "t").read_bytes() == before


def test_a_transcript_has_one_writer_and_any_number_of_readers(tmp_path: Path) -> None:
    """A transcript has one writer and any number of readers.

    A second writer is refused before anything is touched: it changes no byte of the file.
    """
    path = tmp_path / "t"
    with Transcript.create(path, HEADER) as transcript:
        transcript.append(0, np.array([5] * PLAN.scalars))
        before = path.read_bytes()
        with open(path, "ab") as torn:
            torn.write(b"half")
        with pytest.raises(TranscriptError, match="another process"):
            Transcript.open(path)
        assert path.read_bytes() == before + b"half"
        assert [record.release for record in read(path)[1]] == [0]
