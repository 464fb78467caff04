"""Overrides may stand anywhere among the options of the commands that take a config."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.cli import build_parser, main


@pytest.mark.parametrize("command", ["train", "eval", "check", "verify"])
def test_overrides_before_between_and_after_options(command: str) -> None:
    parse = build_parser().parse_args
    plain = parse([command, "mine", "a=1", "b=2", "c=3", "--config-path", "here"])
    assert plain.config == "mine" and plain.overrides == ["a=1", "b=2", "c=3"]
    for arguments in (
        ["mine", "--config-path", "here", "a=1", "b=2", "c=3"],
        ["--config-path", "here", "mine", "a=1", "b=2", "c=3"],
        ["mine", "a=1", "--config-path", "here", "b=2", "c=3"],
        ["mine", "a=1", "b=2", "c=3", "--config-path=here"],
    ):
        assert vars(parse([command, *arguments])) == vars(plain), arguments


def test_an_option_between_the_config_and_its_overrides(
    embodied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(embodied), "--dry-run", "runner.seed=3", "++runner.max_steps=4"]) == 0
    command = capsys.readouterr().out.split()
    assert command[-2:] == ["++runner.seed=3", "++runner.max_steps=4"]
    assert main(["check", str(embodied), "--json", "runner.sede=3"]) == 1
    assert "runner.sede" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "eval", "check", "verify"])
def test_an_unknown_option_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "mine", "--sed", "a=1"])
    assert left.value.code == 2
    assert "unrecognized arguments: --sed" in capsys.readouterr().err
