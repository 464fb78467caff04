"""`rlinf verify` from the command to the exit code, with a recipe whose script writes a curve."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlinf.cli import curves, main
from rlinf.cli.curves import Curve
from rlinf.config.load import shipped_folder

SCRIPT = """\
import json, pathlib, sys
given = dict(arg.lstrip("+").split("=", 1) for arg in sys.argv if "=" in arg)
if given.get("runner.seed") == "13":
    sys.exit(5)
folder = pathlib.Path(given["runner.run_dir"])
folder.mkdir(parents=True)
with open(folder / "metrics.jsonl", "w") as file:
    for step, success in enumerate(json.loads(given["example.curve"]), 1):
        line = {"step": step, "env/total_steps": 100.0 * step}
        line |= {"eval/episodes": int(given["example.episodes"]), "eval/return": 1.0}
        print(json.dumps({**line, "eval/success_once": success}), file=file)
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder has an example with a recipe and its curve file."""
    config = tmp_path / "examples" / "workers" / "config"
    config.mkdir(parents=True)
    (config / "mine.yaml").write_text("runner:\n  task_type: workers\n")
    (config / "other.yaml").write_text("runner:\n  task_type: workers\n")
    (config.parent / "main.py").write_text(SCRIPT)
    seeds = {
        seed: Curve([100, 200, 300], [20] * 3, {"success_once": found, "return": [1.0] * 3})
        for seed, found in enumerate([[0.0, 0.6, 1.0], [0.0, 0.4, 0.9]])
    }
    overrides = ["+example.episodes=20"]
    known = curves.gather("mine", overrides, seeds, {"versions": {"torch": "0.1"}})
    curves.save(known, curves.path_for(config, "mine"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(shipped_folder()))
    return tmp_path


def test_a_run_inside_the_band(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "mine", "example.curve=[0.0,0.5,0.95]", "--seed", "3"]) == 0
    printed = capfd.readouterr().out
    assert "band of seeds 0, 1" in printed and "torch 0.1 (here " in printed
    assert "judged from 300 env steps on: success must be 30% there, and 30% after 300" in printed
    assert "       200       50%       0% –    100%  cannot tell" in printed
    assert "       300       95%      30% –    100%  inside" in printed
    assert "1 of 3 evaluations can tell, and none is below the band" in printed
    assert printed.rstrip().endswith("mine learns as it should")
    [run] = (tree / "logs" / "verify").iterdir()
    # The evaluations are those of the curve file.
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert first["eval/episodes"] == 20


def test_a_run_below_the_band(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "mine", "example.curve=[0.0,0.2,0.1]"]) == 1
    printed = capfd.readouterr().out
    assert "first after 300 env steps: 10% is below 30%" in printed
    assert "learns as it should" not in printed


def test_overrides_may_follow_options(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    curve = "example.curve=[0.0,0.5,0.95]"
    assert (
        main(["verify", "mine", "--seed", "3", curve, "--log-path", "here", "runner.seed=4"]) == 0
    )
    assert (tree / "here").is_dir()
    with pytest.raises(SystemExit):
        main(["verify", "mine", curve, "--sed", "3"])
    assert "--sed" in capfd.readouterr().err


def test_better_and_shorter_runs_are_told(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "mine", "example.curve=[0.9,0.9]"]) == 0
    printed = capfd.readouterr().out
    assert "1 of 2 evaluations are better than the band: fine" in printed
    assert "inside as far as it went, 200 env steps of the band's 300; 1 of 2" in printed


def test_a_run_too_short_to_be_judged(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "mine", "example.curve=[0.0,0.0]"]) == 2
    printed = capfd.readouterr().out
    assert "cannot tell: the run ended after 200 env steps, and the band judges from 300" in printed
    assert "learns as it should" not in printed and "inside as far" not in printed


def test_a_band_that_takes_every_run_is_refused_before_the_run(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tree / "examples" / "workers" / "config"
    found = {0: [0.0, 0.0, 1.0], 1: [0.0, 0.0, 0.0]}
    seeds = {
        seed: Curve([100, 200, 300], [20] * 3, {"success_once": values, "return": [1.0] * 3})
        for seed, values in found.items()
    }
    curves.save(curves.gather("other", [], seeds, {}), curves.path_for(config, "other"))
    assert main(["verify", "other", "example.curve=[0.0,0.0,0.0]"]) == 2
    said = capsys.readouterr().err
    assert (
        "can judge no run" in said and "above 0%, which a run reaches that learns nothing" in said
    )
    assert "--recipe other --write" in said and not (tree / "logs").exists()


def test_a_run_that_fails(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "mine", "example.curve=[]", "--seed", "13"]) == 1
    assert "the run ended with exit code 5" in capfd.readouterr().err


def test_a_run_that_tells_no_curve(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "mine", "example.curve=[]"]) == 1
    assert "has no evaluation" in capfd.readouterr().err


def test_a_recipe_without_a_curve_file(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "other"]) == 2
    said = capsys.readouterr().err
    (known,) = re.findall("recipes that have one: (.*?)\\.", said)
    assert {"metaworld_ppo_mlp", "mine"} <= set(known.split(", ")) and "other" not in known
    assert "benchmarks.learning --recipe other --write" in said


def test_a_recipe_that_is_not_there(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "min"]) == 1
    assert "did you mean 'mine'" in capsys.readouterr().err
