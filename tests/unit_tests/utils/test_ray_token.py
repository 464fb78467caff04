from __future__ import annotations

from pathlib import Path

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


def test_it_is_used_unless_something_else_was_chosen() -> None:
    environ = {"RAY_AUTH_TOKEN": "x"}
    use_token(environ)
    assert environ["RAY_AUTH_MODE"] == "token"
    chosen = {"RAY_AUTH_TOKEN": "x", "RAY_AUTH_MODE": "disabled"}
    use_token(chosen)
    assert chosen["RAY_AUTH_MODE"] == "disabled"
    nothing: dict[str, str] = {}
    use_token(nothing)
    assert nothing == {}
