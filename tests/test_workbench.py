"""Tests that the interactive workbench shows what the library says, without a browser, and by a slider in one."""

import json
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpzero_theory.params import main
from dpzero_theory.privacy.__main__ import main as privacy

pytest.importorskip("marimo", reason="the workbench extra is not installed")

PAGE = Path(__file__).resolve().parents[1] / "examples" / "workbench.py"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # The page's server gives such warnings
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def _words(command: str) -> list[str]:
    """Returns the words of a command that the page shows, without those that start Python and the module."""
    return shlex.split(command.replace("\\\n", ""))[3:]


def _said(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Returns the calculator's answer, with the exact calibration, to a command that the page shows."""
    assert main([*_words(command), "--format", "json"]) == 0
    (answer,) = [one for one in json.loads(capsys.readouterr().out)["results"] if one["calibration"] == "exact"]
    return dict(answer)


def test_what_is_shown_is_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    _, shown = runpy.run_path(str(PAGE))["app"].run()
    answer = _said(shown["command"], capsys)
    assert shown["found"].bound == answer["bound"]
    assert (shown["found"].steps, shown["found"].clip) == (answer["steps"], answer["clip"])
    copied: dict[str, Any] = {}
    exec(shown["code"], copied)
    assert copied["plan"] == shown["found"]
    capsys.readouterr()
    noise = shown["multipliers"]
    assert privacy([*_words(shown["noise_command"]), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["noise_multiplier"] == noise["poisson"][2]
    assert all(a > b for kind in noise for a, b in zip(noise[kind], noise[kind][1:], strict=False))
    assert all(poisson < full for poisson, full in zip(noise["poisson"], noise["full"], strict=True))


@pytest.fixture
def address() -> Iterator[str]:
    """Serves the page by a program of its own, and yields the page's address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "marimo", "run", str(PAGE), "--headless", "--no-token", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")
def test_a_slider_moves_the_number(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        bounds = []
        for n in (10_000, 20_000):
            command = page.get_by_text(f"--n {n} ").first.inner_text(timeout=60_000)
            bounds.append(_said(command[command.index("python -m") :], capsys)["bound"])
            page.get_by_text(f"{bounds[-1]:.4g}", exact=True).first.wait_for(timeout=60_000)
            page.get_by_role("slider").first.press("ArrowRight")
        browser.close()
    assert bounds[1] < bounds[0]
