"""The page of a run in a real browser: its scripts run, and it shows the numbers of the run."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rlinf.cli import main
from tests.unit_tests.cli.test_report import lines_of_metrics, make_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 50


class Browser:
    """A browser without a window."""

    def __init__(self, program: str, folder: Path):
        self._command = [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--disable-extensions", f"--user-data-dir={folder}"),
            *("--enable-logging=stderr", "--virtual-time-budget=10000", "--window-size=1200,2000"),
        ]

    def _run(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [*self._command, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)

    def dom(self, url: str) -> str:
        """The document after its scripts have run.

        Raises:
            AssertionError: one of them has failed, or the browser has.
        """
        done = self._run("--dump-dom", url)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "Uncaught" not in done.stderr, done.stderr
        return done.stdout

    def picture(self, url: str, path: Path) -> None:
        """Writes what it looks like as PNG."""
        done = self._run(f"--screenshot={path}", url)
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Browser:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"needs a browser: one of {', '.join(BROWSERS)}")
    browser = Browser(program, tmp_path_factory.mktemp("browser"))
    try:
        page = browser.dom("data:text/html,<p><script>document.write(6*7)</script></p>")
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{program} shows no page on this machine: {str(error)[:300]}")
    assert "42" in page
    return browser


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    folder = make_run(tmp_path_factory.mktemp("run") / "run")
    assert main(["report", str(folder)]) == 0
    return (folder / "report.html").as_uri()


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_every_curve_is_drawn_and_tells_its_last_value(browser, url):
    dom = browser.dom(url)
    last = {name: value for line in lines_of_metrics() for name, value in line.items()}
    charts = re.findall(
        r'<div class="name" title="([^"]+)">.*?<div class="now">([^<]*)</div>.*?<path d="([^"]+)"',
        dom,
        re.DOTALL,
    )
    assert {"env/success_once", "eval/success_once"} <= {name for name, _, _ in charts}
    for name, now, path in charts:
        assert number(now) == pytest.approx(last[name], rel=1e-2), name
        values = [line[name] for line in lines_of_metrics() if name in line]
        finite = [value for value in values if math.isfinite(value)]
        assert len(re.findall("[ML]", path)) == len(finite), name
    assert dom.count('class="point"') >= len(charts)


def test_headline_and_timeline_are_there(browser, url, tmp_path):
    dom = browser.dom(url)
    words = re.sub(r"<script.*?</script>|<[^>]+>", " ", dom, flags=re.DOTALL)
    for text in ("80.0%", "8,000", "1:15 min", "rollout is the limit: 70% of the critical path"):
        assert text in " ".join(words.split()), text
    assert re.search(r'<div[^>]*id="timeline".*<canvas[^>]*width="[1-9]', dom, re.DOTALL)
    legend = re.search(r'<div class="legend">(.*?)</div>', dom, re.DOTALL)
    assert legend and "env_step" in legend[1]
    path = tmp_path / "page.png"
    browser.picture(url, path)
    # Without a single colour, a picture of this size takes a tenth of that.
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 30_000
