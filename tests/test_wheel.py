"""Tests of the installed package: it works outside the checkout, with its dependencies and nothing else of ours.

Processes run without `site`, so that no editable install is found: their path is the wheel's folder and that of the
libraries.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

import dpzero_theory

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "dpzero_theory"
NOT_SOURCES = shutil.ignore_patterns(".*", "build", "dist", "out", "results", "*.egg-info", "__pycache__")
PROBLEM = ["--n", "10000", "--epsilon", "2", "--delta", "1e-6", "--d", "2000", "--r", "8.178"]
README = (ROOT / "README.md").read_text()
LIBRARIES = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
PRIVACY = ["--epsilon", "2", "--delta", "1e-5", "--steps", "100", "--n", "1024"]


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel of a clean copy of the checkout is installed, alone."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "checkout", ignore=NOT_SOURCES)
    offline = ("--no-deps", "--no-index")
    pip("wheel", "--no-build-isolation", *offline, "--wheel-dir", folder, folder / "checkout")
    (wheel,) = folder.glob("*.whl")
    pip("install", *offline, "--no-compile", "--target", folder / "installed", wheel)
    shutil.rmtree(folder / "checkout")
    return folder / "installed"


@pytest.fixture
def metadata(installed: Path) -> Message:
    (path,) = installed.glob("*.dist-info/METADATA")
    return message_from_string(path.read_text())


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments in `folder`, without `site`; it finds the wheel and the libraries alone.

    `installed` is the folder of the wheel.
    """
    path = os.pathsep.join([str(installed), *LIBRARIES])
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_package_is_installed_whole(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {PACKAGE, "bin"}

    def files(root: Path) -> set[Path]:
        return {
            path.relative_to(root)
            for path in (root / PACKAGE).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    assert files(installed) == files(ROOT)


def test_what_the_metadata_says(installed: Path, metadata: Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Version"] == dpzero_theory.__version__
    assert f"\nversion: {dpzero_theory.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    (licence,) = installed.glob("*.dist-info/licenses/LICENSE")
    assert licence.read_text() == (ROOT / "LICENSE").read_text()
    needed = metadata.get_all("Requires-Dist", [])
    assert {re.split(r"[<>=]", name)[0] for name in needed if "extra ==" not in name} == {"numpy", "scipy"}
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])


def test_the_description_has_no_link_into_the_checkout(metadata: Message) -> None:
    """The package's description has no link into the checkout, since an index shows the README without those files."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert [part for part in README.split("\n\n") if "](" not in part and part.strip() not in text] == []
    assert not re.findall(r"\]\((?!https?:|#)[^)]*\)|<img[^>]*>", text)


def test_the_calculator_runs_and_imports_no_extra(installed: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from dpzero_theory import params; params.main(sys.argv[1:])\n"
        "print(params.__file__, *{'torch', 'matplotlib', 'pandas', 'sklearn'} & set(sys.modules), file=sys.stderr)"
    )
    done = run(installed, tmp_path, "-c", script, *PROBLEM, "--format", "json")
    assert "theorem-3" in {result["id"] for result in json.loads(good(done))["results"]}
    assert done.stderr == f"{installed / PACKAGE / 'params.py'}\n"
    assert good(run(installed, tmp_path, "-m", "dpzero_theory.params", *PROBLEM, "--format", "json")) == done.stdout
    command = str(installed / "bin" / "dpzero-params")
    assert good(run(installed, tmp_path, command, *PROBLEM, "--format", "json")) == done.stdout


def test_the_accountant_runs(installed: Path, tmp_path: Path) -> None:
    for command in (["-m", "dpzero_theory.privacy"], [str(installed / "bin" / "dpzero-privacy")]):
        found = json.loads(good(run(installed, tmp_path, *command, *PRIVACY, "--format", "json")))
        assert found["bracket"]["lower"] <= found["noise_multiplier"] == found["bracket"]["upper"]


def test_a_private_run(installed: Path, tmp_path: Path) -> None:
    """The private run of the README, with ten steps, works from the installed package."""
    (example,) = re.findall(r"```python\n(import torch\n.*?make_private_with_epsilon.*?)```", README, re.DOTALL)
    assert "steps=100," in example
    script = example.replace("steps=100,", "steps=10,") + "import dpzero_theory\nprint(dpzero_theory.__file__)"
    epsilon, file = good(run(installed, tmp_path, "-c", script)).split()
    assert 1.9 < float(epsilon) <= 2
    assert Path(file).is_relative_to(installed)
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"run.sqlite"}


@pytest.mark.parametrize(
    ("package", "arguments", "status", "line"),
    [
        ("torch", ["curvature", "--help"], 2, "python -m dpzero_theory.curvature: needs torch: {}[torch]'\n"),
        (
            "flint",
            ["privacy.checker", "certificate.json"],
            1,
            "the checker needs python-flint: {}[certificate]'\n",
        ),
    ],
)
def test_without_an_extra_there_is_one_line_that_names_it(
    installed: Path, tmp_path: Path, package: str, arguments: list[str], status: int, line: str
) -> None:
    command, *rest = arguments
    script = (
        f"import runpy, sys; sys.modules[{package!r}] = None; runpy.run_module(sys.argv.pop(1), run_name='__main__')"
    )
    done = run(installed, tmp_path, "-c", script, f"dpzero_theory.{command}", *rest)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == line.format("pip install 'dpzero-theory")
    assert not list(tmp_path.iterdir())
