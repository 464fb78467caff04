from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.utils.ray_token import has_token, use_token


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def test_a_token_is_found_where_ray_looks_for_it(home: Path) -> None:
    assert not has_token({})
    assert has_token({"RAY_AUTH_TOKEN": "x"}) and has_token({"RAY_AUTH_TOKEN_PATH": "/x"})
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("x")
    assert has_token({})


@pytest.fixture
def ray_says(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """Lets Ray answer with an exit code whether it is there; returns how it was asked."""

    def says(code: int) -> list[str]:
        asked: list[str] = []

        def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
            asked.extend([command[-1], env["RAY_AUTH_MODE"]])
            return SimpleNamespace(returncode=code)

        monkeypatch.setattr("subprocess.run", run)
        return asked

    return says


def test_it_is_used_where_the_cluster_asks_for_it(ray_says) -> None:
    environ = {"RAY_AUTH_TOKEN": "x"}
    asked = ray_says(1)
    use_token("head:6379", environ)
    assert environ["RAY_AUTH_MODE"] == "token" and asked == ["head:6379", "disabled"]
    ray_says(0)
    for_open = {"RAY_AUTH_TOKEN": "x"}
    use_token("head:6379", for_open)
    assert for_open == {"RAY_AUTH_TOKEN": "x"}


def test_what_was_chosen_stays(ray_says) -> None:
    asked = ray_says(1)
    chosen = {"RAY_AUTH_TOKEN": "x", "RAY_AUTH_MODE": "disabled"}
    use_token("head:6379", chosen)
    assert chosen["RAY_AUTH_MODE"] == "disabled"
    nothing: dict[str, str] = {}
    use_token("head:6379", nothing)
    assert nothing == {} and asked == []
