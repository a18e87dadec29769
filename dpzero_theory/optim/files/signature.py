"""An Ed25519 signature of a run's folder as it is, in its file signature.json: it says who claims the run.

    {"format": ..., "run": ..., "transcript": ..., "ledger": ..., "claim": {...}, "key": ..., "signature": ...}

    run                  the digest of the transcript's header line, and so of the plan
    transcript, ledger   the SHA-256 of the files, to the last byte
    claim                epsilon, delta and relation
    key                  the public key, 32 bytes, hexadecimal
    signature            over the line without this entry, hexadecimal

A run that goes on afterwards must be signed again. No file can say to whom a key belongs: ask whoever signed.

Keys are PEM files, as OpenSSL writes them:

    openssl genpkey -algorithm ed25519 -out key.pem
    openssl pkey -in key.pem -pubout -out public.pem
"""

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpzero_theory import check
from dpzero_theory.optim.files.folder import LEDGER, TRANSCRIPT
from dpzero_theory.optim.files.statement import Statement
from dpzero_theory.privacy.journal import content, opened

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNATURE = "signature.json"
_SIGNATURE_FORMAT = "dpzero-signature-1"
_TEXTS = dict.fromkeys(("format", "run", "transcript", "ledger", "key", "signature"), str)
_ROUNDING = 1e-9
"""A signed epsilon may be below what the run is known to cost by this share of it, which is taken for rounding."""


def private_key(path: Path) -> "Ed25519PrivateKey":
    """Return the Ed25519 private key in the PEM file at `path`.

    Raises ValueError for any other file, or if the extra `sign` is not installed, and OSError.
    """
    check.installed("a signature", "cryptography", "sign")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _loaded(path, lambda text: load_pem_private_key(text, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"sign must be a PEM file of an Ed25519 private key without a passphrase; got {path}")
    return key


def public_key(path: Path) -> str:
    """Return the Ed25519 public key in the PEM file at `path`, in hexadecimal digits.

    Raises ValueError for any other file, or if the extra `sign` is not installed, and OSError.
    """
    check.installed("a signature", "cryptography", "sign")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _loaded(path, load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"signer must be a PEM file of an Ed25519 public key; got {path}")
    return key.public_bytes_raw().hex()


def sign(folder: Path, claimed: Statement, key: "Ed25519PrivateKey") -> None:
    """Sign a run's folder as it is with a private key; an earlier signature is replaced.

    claimed: the run's privacy statement, whose first epsilon and delta are signed. Raises OSError where a file cannot
    be read or written.
    """
    values = {**_signed(folder, claimed), "key": key.public_key().public_bytes_raw().hex()}
    line = {**values, "signature": key.sign(json.dumps(values).encode()).hex()}
    new = folder / f".{SIGNATURE}.{os.urandom(4).hex()}"
    try:
        with opened(new, "xb") as file:
            file.write((json.dumps(line) + "\n").encode())
            os.fsync(file)
        new.replace(folder / SIGNATURE)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def signer(folder: Path, claimed: Statement) -> str:
    """Check the signature in a run's folder, which must be valid for the folder as it is, and return the public key in
    hexadecimal digits.

    claimed: the privacy statement of the run as it is. The claim that was signed must have its delta and relation, and
    an epsilon that is not below the certified lower bound on what the run cost (up to a relative 1e-9). Raises
    ValueError if anything is otherwise, and OSError.
    """
    check.installed("a signature", "cryptography", "sign")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    text = content(folder / SIGNATURE)
    refused = f"{SIGNATURE} must be what --sign writes"
    try:
        values: dict[str, Any] = json.loads(text)
        written = (json.dumps(values, allow_nan=False) + "\n").encode() == text
        check.entries(SIGNATURE, values, {**_TEXTS, "claim": dict})
        claim = check.entries("claim", values["claim"], {"epsilon": float, "delta": float, "relation": str})
        key, signature = values["key"], bytes.fromhex(values.pop("signature"))
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, json.dumps(values).encode())
    except InvalidSignature:
        raise ValueError("the signature is not of this file: it was altered, or made with another key") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{refused}; {check.printable(str(error))}") from None
    if not written or values["format"] != _SIGNATURE_FORMAT or key != key.lower():
        raise ValueError(refused)
    now = _signed(folder, claimed)
    for name in ("run", "transcript", "ledger"):
        if values[name] != now[name]:
            raise ValueError(f"the signature is of another {name}: the folder was altered, or went on, after it")
    if (claim["delta"], claim["relation"]) != (now["claim"]["delta"], now["claim"]["relation"]):
        raise ValueError("the signature is of a claim with another delta or relation")
    if not claim["epsilon"] >= claimed.costs[0].paid.lower * (1 - _ROUNDING):
        raise ValueError(f"the signature is of epsilon {claim['epsilon']:g}, less than what the run cost")
    return str(key)


def _signed(folder: Path, claimed: Statement) -> dict[str, Any]:
    """Return what is signed of the run in `folder`: the entries format, run, transcript, ledger and claim that the
    module's docstring shows.

    claimed: the run's privacy statement. The claim is the upper end of its first epsilon, the delta of that epsilon,
    and its neighbouring relation.
    """
    first = claimed.costs[0]
    transcript = content(folder / TRANSCRIPT)
    return {
        "format": _SIGNATURE_FORMAT,
        "run": hashlib.sha256(transcript[: transcript.find(b"\n") + 1]).hexdigest(),
        "transcript": hashlib.sha256(transcript).hexdigest(),
        "ledger": hashlib.sha256(content(folder / LEDGER)).hexdigest(),
        "claim": {"epsilon": first.paid.upper, "delta": first.delta, "relation": claimed.relation},
    }


def _loaded(path: Path, load: Any) -> Any:
    """Return what the function `load` returns for the bytes of the file at `path`, or None where it raises anything.

    Raises OSError where the file cannot be read.
    """
    text = content(path)
    try:
        return load(text)
    except Exception:
        return None
