"""Tests of signatures of a run's folder, with every byte of what is signed changed.

Keys are read in OpenSSL's format and in this library's.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpzero_theory.optim.files.folder import LEDGER, TRANSCRIPT
from dpzero_theory.optim.files.signature import SIGNATURE
from dpzero_theory.optim.verify import main
from tests.optim.small import private

pytest.importorskip("cryptography", reason="signatures need the extra sign")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


def written(path: Path, key: Ed25519PrivateKey | X25519PrivateKey, secret: KeySerializationEncryption) -> Path:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    return path


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path, str]:
    """The files of a private key and of its public key, and the public key in hexadecimal digits."""
    key = Ed25519PrivateKey.generate()
    public = tmp_path / "public.pem"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return written(tmp_path / "key.pem", key, NoEncryption()), public, key.public_key().public_bytes_raw().hex()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = private(tmp_path / "run")
    for _ in range(5):
        run.step()
    run.close()
    return tmp_path / "run"


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as error:
        status = int(str(error.code))
    out, err = capsys.readouterr()
    assert err.count("\n") == (status != 0)
    return status, out + err


def test_a_signed_folder_says_who_claims_it(
    folder: Path, keys: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    private_key, public_key, key = keys
    assert "signed by" not in said(capsys, folder)[1]
    status, line = said(capsys, folder, "--signer", public_key)
    assert (status, "signed by: nobody" in line) == (1, True)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    status, text = said(capsys, folder, "--sign", private_key)
    assert status == 0
    assert any(line.split() == ["signed", "by", "the", "key", key, "holds"] for line in text.splitlines())
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {SIGNATURE}
    assert said(capsys, folder, "--signer", public_key)[0] == 0
    other = written(folder.parent / "other.pem", Ed25519PrivateKey.generate(), NoEncryption())
    assert said(capsys, folder, "--sign", other)[0] == 0
    status, line = said(capsys, folder, "--signer", public_key)
    assert (status, f"not {key}" in line) == (1, True)


def test_a_run_that_goes_on_is_signed_again(
    folder: Path, keys: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, folder, "--sign", keys[0])
    run = private(folder, resume=True)
    run.step()
    run.close()
    status, line = said(capsys, folder)
    assert (status, "the signature is of another transcript" in line) == (1, True)
    assert said(capsys, folder, "--sign", keys[0])[0] == 0
    assert said(capsys, folder, "--signer", keys[1])[0] == 0


def test_every_change_of_folder_or_signature_is_refused(
    folder: Path, keys: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, folder, "--sign", keys[0])
    whole = (folder / SIGNATURE).read_bytes()
    for place in range(0, len(whole), 13):
        (folder / SIGNATURE).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert said(capsys, folder)[0] == 1, place
    values = json.loads(whole)
    low = {**values, "claim": {**values["claim"], "epsilon": 0.001}}
    for text in (
        b"", b"\n", b"[]\n", b"[" * 10_000, b"{}\n", b"\xff\n", whole[:-1], whole + b"\n", whole.replace(b", ", b","),
        *(json.dumps({**values, name: odd}).encode() + b"\n" for name in values for odd in (None, 7, "", "x\ny", {})),
        json.dumps(low).encode() + b"\n",
    ):  # fmt: skip
        (folder / SIGNATURE).write_bytes(text)
        assert said(capsys, folder)[0] == 1, text
    key = Ed25519PrivateKey.generate()
    low = {name: value for name, value in low.items() if name != "signature"}
    low["key"] = key.public_key().public_bytes_raw().hex()
    signed = {**low, "signature": key.sign(json.dumps(low).encode()).hex()}
    (folder / SIGNATURE).write_text(json.dumps(signed) + "\n")
    assert "less than what the run cost" in said(capsys, folder)[1]
    (folder / SIGNATURE).unlink()
    (folder / SIGNATURE).symlink_to("/dev/zero")
    assert said(capsys, folder)[0] == 1
    (folder / SIGNATURE).unlink()
    (folder / SIGNATURE).write_bytes(whole)
    assert said(capsys, folder)[0] == 0
    for name in (LEDGER, TRANSCRIPT):  # A half-written last record is not damage, but it is not what was signed
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content + b"torn")
        status, line = said(capsys, folder)
        assert (status, "the signature is of another" in line) == (1, True)
        (folder / name).write_bytes(content)


def test_what_does_not_hold_is_not_signed(
    folder: Path, keys: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / LEDGER).write_bytes(b"")
    assert said(capsys, folder, "--sign", keys[0])[0] == 1
    assert not (folder / SIGNATURE).exists()


def test_keys_of_other_kinds_are_refused(
    folder: Path, keys: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder.parent
    (place / "words").write_text("-----BEGIN PRIVATE KEY-----\nno\n-----END PRIVATE KEY-----\n")
    locked = written(place / "locked", Ed25519PrivateKey.generate(), BestAvailableEncryption(b"secret"))
    another = written(place / "another", X25519PrivateKey.generate(), NoEncryption())
    for file in (place / "words", locked, another, keys[1], place / "none", "/dev/zero"):
        status, line = said(capsys, folder, "--sign", file)
        assert (status, "--sign" in line) == (2, True), line
    for file in (place / "words", keys[0], another):
        status, line = said(capsys, folder, "--signer", file)
        assert (status, "--signer" in line) == (2, True), line
    assert not (folder / SIGNATURE).exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--sign", "{key}"], 2, "--sign: a signature needs cryptography: pip install 'dpzero-theory[sign]'"),
        (["--signer", "{public}"], 2, "--signer: a signature needs cryptography: pip install 'dpzero-theory[sign]'"),
        ([], 0, "not looked at: needs cryptography: pip install 'dpzero-theory[sign]'"),
    ],
)
def test_without_the_extra_it_is_named(
    folder: Path, keys: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str], arguments: list[str], status: int,
    message: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    said(capsys, folder, "--sign", keys[0])
    monkeypatch.setitem(sys.modules, "cryptography", None)
    given = [argument.format(key=keys[0], public=keys[1]) for argument in arguments]
    found, text = said(capsys, folder, *given)
    assert (found, message in text) == (status, True), text


def test_openssls_keys_are_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, public = folder.parent / "o.pem", folder.parent / "p.pem"
    try:
        for command in (
            ["genpkey", "-algorithm", "ed25519", "-out", key],
            ["pkey", "-in", key, "-pubout", "-out", public],
        ):
            subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no openssl that knows Ed25519: {error}")
    assert said(capsys, folder, "--sign", key)[0] == 0
    assert said(capsys, folder, "--signer", public)[0] == 0
