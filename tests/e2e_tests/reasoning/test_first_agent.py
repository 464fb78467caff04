"""The page "Your first agent in forty lines": it is about that short, and what it shows trains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e_tests.command import rlinf

PAGE = Path(__file__).resolve().parents[3] / "docs" / "agents_first.md"
FEW = ["runner.max_steps=2", "runner.progress=off", "data.rollout_batch_size=8"]


def block(language: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


def code_lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(block("python"))
    (tmp_path / "shop.yaml").write_text(block(r"\{code-block\} yaml"))
    return tmp_path


def test_it_is_about_forty_lines() -> None:
    assert code_lines(block("python")) + code_lines(block(r"\{code-block\} yaml")) < 48


@pytest.mark.timeout(500)
def test_it_trains_is_evaluated_and_shows_its_episodes(folder: Path, ray_address: str) -> None:
    assert "of which 9 count in the loss" in rlinf(
        folder, ray_address, "check", "shop.yaml", "--show-sample"
    )
    rlinf(folder, ray_address, "train", "shop.yaml", *FEW)
    said = rlinf(folder, ray_address, "eval", "logs/shop")
    assert "evaluated pass@1" in said and "tool calls and" in said
    assert "with tools switched off: pass@1" in said
    (evaluated,) = (folder / "logs" / "shop" / "latest").glob("eval_*")
    found = json.loads((evaluated / "summary.json").read_text())["evaluation"]
    assert found["eval/prompts"] == 13 and found["eval/tool_calls"] > 0
    assert found["eval/tool_errors"] <= found["eval/tool_calls"]
    assert found["eval/pass@1_no_tools"] < 0.25, "prices cannot be known, only guessed"
    episodes = [json.loads(line) for line in (evaluated / "samples.jsonl").open()]
    assert len(episodes) == 13 and not any(episode["learnt"] for episode in episodes)
    calls = [call for each in episodes for turn in each["turns"] for call in turn["calls"]]
    assert "price" in {call.get("name") for call in calls}
    rlinf(folder, ray_address, "report", "logs/shop")
    page = (folder / "logs" / "shop" / "latest" / "report.html").read_text()
    assert "price(product=" in page and 'class="part trained"' in page
