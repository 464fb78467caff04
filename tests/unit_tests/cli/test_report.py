"""The page of a run: its numbers are those of the run, and nothing of it comes from elsewhere."""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import socket
import subprocess
import time
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.cli.report.metric_series import thin
from rlinf.cli.report.page import DATA_ID
from rlinf.cli.timeline.lanes import load_timeline
from rlinf.cli.timeline.summary import summarise
from rlinf.utils.runs import RunLock
from tests.unit_tests.cli.traces import write_traces

EVALUATION = {"eval/episodes": 20.0, "eval/success_once": 0.8, "eval/return": 512.25}
HOSTILE = '</script><b>bold & "quoted" <!-- $title'


class Page(HTMLParser):
    """Takes a page apart: texts by element, what it refers to, and its data."""

    def __init__(self, text: str):
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.references: list[str] = []
        self._open: list[str] = []
        self._script: str | None = None
        self.scripts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self._open == [], "elements are closed"
        self.data = json.loads(self.scripts[DATA_ID])

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.references += [found[key] for key in ("src", "href", "poster") if found.get(key)]
        if tag not in ("meta", "img", "br", "link"):
            self._open.append(found.get("id") or found.get("class") or tag)
        if tag == "script":
            self._script = found.get("id", "code")

    def handle_endtag(self, tag):
        self._open.pop()
        self._script = None

    def handle_data(self, data):
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        elif data.strip():
            for name in set(self._open):
                self.texts.setdefault(name, []).append(data)

    def text(self, name: str) -> str:
        return " ".join(self.texts.get(name, []))


def lines_of_metrics() -> list[dict]:
    lines = []
    for step in range(1, 6):
        lines.append(
            {
                "step": step,
                "env/success_once": step / 10,
                "env/total_steps": 1600.0 * step,
                "env/steps_per_second": 2000.0 + step,
                "train/actor/grad_norm": math.nan if step == 3 else 1 / 3 * step,
                "time/step": 0.1 + 0.2 * step,
            }
        )
        if step % 2 == 0:
            lines.append({"step": step, **EVALUATION, "eval/success_once": step / 20})
    return lines


def make_run(folder: Path, **summary) -> Path:
    """A finished run of five steps; a key that is given as None is left out of the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    write_traces(folder, steps=5)
    text = "".join(json.dumps(line) + "\n" for line in lines_of_metrics())
    (folder / "metrics.jsonl").write_text(text)
    config = {"runner": {"seed": 7, "max_epochs": 5}, "env": {"train": {"env_type": "metaworld"}}}
    config["env"]["train"]["task"] = HOSTILE
    (folder / "config.yaml").write_text(json.dumps(config))
    facts = {
        "status": "finished",
        "seed": 7,
        "command": ["train.py", "--config-name", "tiny", "++runner.max_epochs=5"],
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "began": time.time() - 100,
        "versions": {"torch": "2.13.0", "ray": "2.60.0"},
        "evaluation": EVALUATION,
        "env_steps": 8000,
        "env_steps_per_second": 801.2,
        "global_step": 5,
        "wall_seconds": 75.0,
    } | summary
    kept = {key: value for key, value in facts.items() if value is not None}
    (folder / "summary.json").write_text(json.dumps(kept))
    return folder


def report(folder: Path, *more: str) -> Page:
    assert main(["report", str(folder), *more]) == 0
    return Page((folder / "report.html").read_text())


def number(value) -> float:
    return float(value) if isinstance(value, str) else value


def test_the_curves_are_those_of_the_run(tmp_path):
    page = report(make_run(tmp_path / "run"))
    expected: dict[str, list] = {}
    for line in lines_of_metrics():
        for name, value in line.items():
            if name != "step":
                expected.setdefault(name, []).append((line["step"], value))
    series = page.data["metrics"]["series"]
    assert set(series) == set(expected)
    for name, points in expected.items():
        found = [
            (step, number(value))
            for step, value in zip(series[name]["steps"], series[name]["values"], strict=True)
        ]
        # Not approximately; NaN, which JSON does not know, included.
        assert repr(found) == repr(points), name


def test_the_headline_is_that_of_the_summary(tmp_path, capsys):
    page = report(make_run(tmp_path / "run"))
    tiles = page.text("tiles")
    for text in ("80.0%", "n = 20", "512.2", "8,000", "801", "1:15 min"):
        assert text in tiles
    assert "58.4% – 91.9%" in tiles, "Wilson's interval of 16 of 20"
    assert page.texts["status finished"] == ["finished"]
    assert page.data["summary"]["evaluation"] == EVALUATION
    assert "recipe tiny" in page.text("subtitle")
    assert "torch" in page.text("versions") and "2.13.0" in page.text("versions")
    # What the command line set is told apart.
    assert "runner.max_epochs 5" in page.text("changed")
    assert "report.html" in capsys.readouterr().out


def test_the_timeline_is_that_of_the_trace(tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    page = report(folder)
    capsys.readouterr()
    assert main(["trace", str(folder)]) == 0
    sentence = page.text("sentence")
    printed = " ".join(capsys.readouterr().out.split())
    assert "rollout is the limit: 70% of the critical path" in sentence
    assert sentence in printed
    shown = page.data["timeline"]
    assert [name for name, *_ in shown["steps"]] == ["step 3", "step 4", "step 5"]
    summary = summarise(load_timeline(folder), first=2)
    for lane in shown["lanes"]:
        seconds: dict = {}
        for i in range(0, len(lane["pieces"]), 4):
            _, length, name, kind = lane["pieces"][i : i + 4]
            key = (shown["names"][name], kind)
            seconds[key] = seconds.get(key, 0.0) + length / 1e6
        of_trace = summary.lanes[lane["name"]]
        expected = {(name, 0): value for name, value in of_trace.busy.items()}
        expected |= {(name, 1): value for name, value in of_trace.waiting.items()}
        assert seconds == pytest.approx(expected, abs=1e-3), lane["name"]
    path = sum(shown["path"][2::3]) / 1e6
    assert path == pytest.approx(30.0, abs=1e-2)


def test_nothing_comes_from_elsewhere_and_no_text_escapes(tmp_path):
    folder = make_run(tmp_path / "run", versions={HOSTILE: HOSTILE})
    page = report(folder)
    assert all(ref.startswith(("#", "data:")) for ref in page.references), page.references
    text = (folder / "report.html").read_text()
    assert "@import" not in text and "url(" not in text and "fetch(" not in text
    assert set(page.scripts) == {DATA_ID, "code"}
    assert page.data["summary"]["versions"] == {HOSTILE: HOSTILE}
    assert HOSTILE in page.text("versions") and HOSTILE in page.text("subtitle")
    assert "b" not in page.texts


def test_a_run_under_way(tmp_path):
    folder = make_run(
        tmp_path / "run",
        status="running",
        evaluation=None,
        env_steps=None,
        env_steps_per_second=None,
        global_step=None,
        wall_seconds=None,
        began=time.time(),
    )
    lock = RunLock(folder)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "env/ret')
    page = report(folder)
    assert page.texts["status running"] == ["still running"]
    tiles = page.text("tiles")
    assert "20.0%" in tiles and "step 4" in tiles, "the last evaluation on the way"
    assert "8,000" in tiles and "2,003" in tiles and "of 5" in tiles
    assert max(page.data["metrics"]["series"]["env/success_once"]["steps"]) == 5
    lock.release()


def test_a_run_that_was_killed_is_not_running(tmp_path):
    page = report(make_run(tmp_path / "run", status="running"))
    assert page.data["status"] == "killed"
    assert "the driver is gone without a word" in page.text("status killed")


def test_a_run_that_was_stopped_says_so(tmp_path):
    page = report(make_run(tmp_path / "run", status="stopped"))
    assert page.data["status"] == "stopped" and "by its user" in page.text("status stopped")


CARD = {
    "who": "EnvGroup:3",
    "where": "node 1 (10.0.0.7), pid 41775",
    "when": "2025-03-02 14:11:09.512",
    "doing": "running interact()",
    "what": "the process was killed by SIGKILL",
    "evidence": ["last log lines:", "[INFO] reset <64> environments"],
    "cause": "the node ran out of memory",
    "change": "use fewer processes per node",
    "followers": ["EnvGroup:1", "RolloutGroup:0"],
    "logs": "logs/run",
}


def test_a_run_that_failed_shows_its_card(tmp_path):
    folder = make_run(tmp_path / "run", status="failed", error="WorkerDied: EnvGroup:3 died")
    (folder / "workers" / "failure.json").write_text(json.dumps(CARD))
    page = report(folder)
    card = page.text("failure")
    for key in ("who", "where", "when", "doing", "what", "cause", "change", "logs"):
        assert CARD[key] in card
    assert "2 stopped because of this: EnvGroup:1, RolloutGroup:0" in card
    assert "\n".join(CARD["evidence"]) in card
    assert page.texts["status failed"] == ["failed"]
    (folder / "workers" / "failure.json").unlink()
    assert "WorkerDied: EnvGroup:3 died" in report(folder).text("error")


def test_a_card_of_an_earlier_start_is_told_apart(tmp_path):
    folder = make_run(tmp_path / "run", status="running", began=time.time())
    lock = RunLock(folder)
    path = folder / "workers" / "failure.json"
    path.write_text(json.dumps(CARD))
    os.utime(path, (time.time() - 1000,) * 2)
    page = report(folder)
    assert "failure" not in page.texts
    assert "An earlier attempt failed: EnvGroup:3: the process was" in page.text("summary")
    assert page.data["status"] == "running"
    lock.release()


def test_a_run_that_recovered_tells_from_what(tmp_path):
    folder = make_run(tmp_path / "run", restarts=1)
    (folder / "workers").rename(folder / "workers.failed_1")
    (folder / "workers.failed_1" / "failure.json").write_text(json.dumps(CARD))
    write_traces(folder, steps=3, begin=500.0)
    page = report(folder)
    assert page.data["status"] == "finished" and "failure" not in page.texts
    assert "An earlier attempt failed: EnvGroup:3" in page.text("summary")
    assert "restarts 1" in page.text("tiles")
    assert [name for name, *_ in page.data["timeline"]["steps"]] == ["step 2", "step 3"]


def test_a_run_that_ended_before_it_began(tmp_path):
    folder = tmp_path / "run"
    (folder / "workers").mkdir(parents=True)
    (folder / "workers" / "failure.json").write_text(json.dumps(CARD))
    page = report(folder)
    assert page.data["status"] == "failed"
    assert "has no traces" in page.text("time") and "No metrics" in page.text("curves")


def test_episodes_are_in_the_page_or_beside_it(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "videos").mkdir()
    videos = {"videos/0.mp4": b"a" * 3000, "videos/1.mp4": b"b" * 9000, "policy.mp4": b"c" * 2000}
    for name, content in videos.items():
        (folder / name).write_bytes(content)
    episodes = [
        {"id": 0, "task": "reach", "success_once": 1.0, "return": 10.5, "length": 100},
        {"id": 1, "task": "push", "success_once": 0.0, "return": -2.0, "length": 50},
        {"id": 2, "task": "push", "success_once": 1.0, "return": 4.0, "length": 70},
    ]
    for episode in episodes[:2]:
        episode["video"] = f"videos/{episode['id']}.mp4"
    rate = {"value": 0.5, "low": 0.0945, "high": 0.9055}
    tasks = {"reach": {"episodes": 1}, "push": {"episodes": 2, "success_once": rate}}
    evaluation = {"episodes": episodes, "tasks": tasks, "protocol": "MT10, seed 3"}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    page = report(folder, "--max-video-mb", "0.006")
    inside = [ref for ref in page.references if ref.startswith("data:video/mp4;base64,")]
    decoded = [base64.b64decode(ref.partition(",")[2]) for ref in inside]
    assert decoded == [videos["videos/0.mp4"]]
    assert "videos/1.mp4" in page.references, "the one that is too large"
    shown = page.text("episodes")
    for text in ("success", "episode 0, reach", "failure", "episode 1, push", "10.5", "All 3"):
        assert text in shown
    assert "50.0% (9.4% – 90.5%)" in shown and "MT10, seed 3" in shown
    # Without a list of episodes there is still the video of the final policy.
    (folder / "evaluation.json").unlink()
    (only,) = [ref for ref in report(folder).references if ref.startswith("data:")]
    assert base64.b64decode(only.partition(",")[2]) == videos["policy.mp4"]


def test_the_run_knows_its_interval_best(tmp_path):
    known = {"eval/success_once_low": 0.5, "eval/success_once_high": 0.93}
    page = report(make_run(tmp_path / "run", evaluation=EVALUATION | known))
    assert "95 % interval 50.0% – 93.0%, n = 20" in page.text("tiles")


def test_a_language_run_is_told_by_its_pass_at_1(tmp_path):
    found = {"eval/pass@1": 0.93, "eval/pass@1_low": 0.886, "eval/pass@1_high": 0.958}
    folder = make_run(
        tmp_path / "run",
        evaluation=found | {"eval/prompts": 200.0, "eval/score": 0.93},
        evaluation_step=4,
        initial_evaluation={"eval/pass@1": 0.41},
        env_steps=None,
        env_steps_per_second=None,
        samples_per_second=231.44,
    )
    (folder / "metrics.jsonl").unlink()
    tiles = report(folder).text("tiles")
    assert "evaluated pass@1" in tiles and "93.0%" in tiles and "231.4" in tiles
    assert "95 % interval 88.6% – 95.8%, n = 200, step 4; 41.0% before the training" in tiles


def test_an_evaluation_of_agents_says_what_tools_did(tmp_path):
    found = {"eval/pass@1": 0.93, "eval/prompts": 200.0, "eval/pass@1_no_tools": 0.025}
    found |= {"eval/tool_calls": 1.494, "eval/tool_errors": 0.015}
    tiles = report(make_run(tmp_path / "run", evaluation=found)).text("tiles")
    assert "2.5% without tools" in tiles
    assert "tool calls 1.49 per episode, and 0.015 errors" in " ".join(tiles.split())
    del found["eval/tool_errors"]
    tiles = report(make_run(tmp_path / "calls", evaluation=found)).text("tiles")
    assert "tool calls 1.49 per episode" in " ".join(tiles.split()) and "errors" not in tiles


def test_what_is_no_run_is_said(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "not the folder of a run" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "absent")])
    assert ended.value.code == 2
    assert f"there is no run at {tmp_path / 'absent'}" in capsys.readouterr().err
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("{}\nnonsense\n{}\n")
    assert main(["report", str(folder)]) == 1
    assert "line 2" in capsys.readouterr().err


def test_a_long_series_keeps_its_peaks():
    points = [(step, math.sin(step / 50)) for step in range(10_000)]
    points[4321] = (4321, 9.0)
    points[7777] = (7777, -9.0)
    points[5000] = (5000, math.nan)
    kept = thin(points, 500)
    assert len(kept) <= 500 and set(kept) <= set(points)
    assert kept == sorted(kept), "in order"
    assert {points[0], points[-1], points[4321], points[7777]} <= set(kept)
    assert thin(points[:500], 500) == points[:500]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the page's script")
def test_the_script_computes_what_it_should(tmp_path):
    code = resources.files("rlinf.cli.report").joinpath("assets", "curves.js").read_text()
    data = {"metrics": {"series": {}, "env_steps": [[1, 100], [3, 300], [4, 500]]}}
    text = json.dumps({"textContent": json.dumps(data)})
    program = (
        f"globalThis.document = {{ getElementById: () => ({text}) }};\n"
        + code.replace('"use strict";', "")
        + """
        console.log(JSON.stringify({
          smooth: smoothed([1, NaN, 2, 4], 0.5), ticks: ticks(0, 1, 4), few: ticks(3, 47, 5),
          between: [1, 2, 3.5, 4, 9].map(envSteps),
          shown: [0.00012345, 1234.5678, 0.5, NaN].map(shown),
        }));"""
    )
    path = tmp_path / "page.js"
    path.write_text(program)
    done = subprocess.run(["node", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # (0.5·1)/0.5; then (0.25·1 + 0.5·2)/0.75; then (0.125·1 + 0.25·2 + 0.5·4)/0.875.
    assert found["smooth"] == [1.0, None, pytest.approx(1.25 / 0.75), pytest.approx(3.0)]
    assert found["ticks"] == [0, 0.5, 1]
    assert found["few"] == [10, 20, 30, 40]
    assert found["between"] == [100, 200, 400, 500, 500]
    assert found["shown"] == ["1.23e-4", "1,235", "0.5", "nan"]
