"""Before and after reinforcement: what `make train-vla` runs, tells and returns."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import imageio
import numpy as np
import pytest

from rlinf.cli import recipes
from rlinf.config import build_config
from rlinf.utils.intervals import wilson

SCRIPT = Path(recipes.__file__).parents[2] / "examples" / "embodiment" / "train_vla.py"


def film(path: Path, frames: int, size: int = 32) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with imageio.get_writer(path, fps=10, codec="libx264", macro_block_size=2) as writer:
        for _ in range(frames):
            writer.append_data(np.zeros((size, size, 3), dtype=np.uint8))


@pytest.fixture
def script(monkeypatch):
    """Return the script with trainings that only write what a real one writes, and their calls."""
    own = runpy.run_path(str(SCRIPT))
    calls: list[list[str]] = []
    made: dict[str, Any] = {"rates": [0.5, 0.9], "protocol": ["the same"] * 2, "size": [32, 32]}

    def run(command, **_):
        calls.append(command[3:])
        keys = dict(part.split("=", 1) for part in command[5:])
        if command[3] == "train":
            number = sum(call[0] == "train" for call in calls) - 1
            folder, rate = Path(keys["runner.run_dir"]), made["rates"][number]
            folder.mkdir(parents=True)
            _, low, high = wilson(rate, 200)
            found = {"eval/success_once": rate, "eval/episodes": 200.0}
            found |= {"eval/success_once_low": low, "eval/success_once_high": high}
            (folder / "summary.json").write_text(json.dumps({"evaluation": found}))
            episodes = [{"id": n, "success_once": n != 3} for n in range(5)]
            content = {"protocol": made["protocol"][number], "episodes": episodes}
            (folder / "evaluation.json").write_text(json.dumps(content))
            film(folder / "videos" / "episode_0003.mp4", 3 + number, made["size"][number])
        return SimpleNamespace(returncode=made.get("code", 0))

    monkeypatch.setattr(own["subprocess"], "run", run)
    return SimpleNamespace(main=own["main"], calls=calls, made=made)


def test_a_better_policy(script, tmp_path, capsys):
    assert script.main(["--folder", str(tmp_path), "runner.seed=2"]) == 0
    collect, first, second = script.calls
    assert collect[:2] == ["collect", "metaworld_sft_oft"]
    assert first[:2] == ["train", "metaworld_sft_oft"]
    assert second[:2] == ["train", "metaworld_grpo_oft"]
    assert f"runner.ckpt_path={tmp_path / 'supervised'}" in second
    # The start that the first one failed at is shown.
    assert "env.eval.video_cfg.episodes=[3]" in second
    assert all("runner.seed=2" in call for call in script.calls)
    found = json.loads((tmp_path / "vla_summary.json").read_text())
    assert found["improved"] and found["before"]["success"] == 0.5
    assert found["reinforced"]["evaluation"]["eval/success_once"] == 0.9
    with imageio.get_reader(found["video"]) as reader:
        pictures = [np.asarray(frame) for frame in reader]
    assert len(pictures) == 4 and pictures[0].shape == (32 + 16, 64, 3)
    assert "50.0% of 200 held-out starts (95 %: 43.1% to 56.9%)" in capsys.readouterr().out


def test_what_it_asks_for_are_keys(script, tmp_path):
    script.main(["--folder", str(tmp_path)])
    for _, recipe, *keys in script.calls:
        build_config(recipe, keys)


def test_a_policy_that_may_be_as_good_as_before_fails(script, tmp_path, capsys):
    script.made["rates"] = [0.5, 0.6]
    assert script.main(["--folder", str(tmp_path)]) == 1
    assert "does not lie above the one before" in capsys.readouterr().out
    assert not json.loads((tmp_path / "vla_summary.json").read_text())["improved"]
    with pytest.raises(SystemExit, match="name another with --folder"):
        script.main(["--folder", str(tmp_path)])


def test_other_starts_cannot_be_compared(script, tmp_path):
    script.made["protocol"] = ["seed 1", "seed 2"]
    with pytest.raises(SystemExit, match="the evaluations differ: seed 1; seed 2"):
        script.main(["--folder", str(tmp_path)])


def test_videos_of_other_sizes_are_left_out(script, tmp_path, capsys):
    script.made["size"] = [32, 64]
    assert script.main(["--folder", str(tmp_path)]) == 0
    assert "record both with the same env" in capsys.readouterr().err
    assert json.loads((tmp_path / "vla_summary.json").read_text())["video"] is None


def test_a_command_that_fails_ends_it(script, tmp_path):
    script.made["code"] = 7
    with pytest.raises(SystemExit) as left:
        script.main(["--folder", str(tmp_path)])
    assert left.value.code == 7 and len(script.calls) == 1


def test_words_that_are_no_keys_are_refused(script, tmp_path):
    with pytest.raises(SystemExit, match="neither an option nor KEY=VALUE"):
        script.main(["--folder", str(tmp_path), "seed"])
    assert not script.calls
