"""What `rlinf testbed` is told, and what it says where there can be no hosts."""

from __future__ import annotations

import argparse

import pytest

from rlinf.cli import build_parser, main
from rlinf.cli.testbed import link_speed


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["testbed", *words])


def test_the_command_is_all_that_stands_after_the_dashes() -> None:
    found = parsed("3", "--link", "1gbit", "--", "rlinf", "train", "x", "--list", "--", "-h")
    assert found.words == ["rlinf", "train", "x", "--list", "--", "-h"]
    assert (found.hosts, found.link, found.cpus) == (3, 1e9, 4)
    assert parsed("--cpus", "2", "2").words == []
    assert [str(path) for path in parsed("2", "--share", "/tmp/a", "--share", "b").share] == [
        "/tmp/a",
        "b",
    ]


@pytest.mark.parametrize(
    ("text", "bits"),
    [("1gbit", 1e9), ("2.5Gbit/s", 2.5e9), ("100mbit", 1e8), ("64k", 64e3), ("9000", 9000)],
)
def test_speeds(text: str, bits: float) -> None:
    assert link_speed(text) == bits


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["0"], "'0' is not a number of hosts, 1 to 64"),
        (["many"], "'many' is not a number of hosts"),
        (["2", "--link", "fast"], "'fast' is not the speed of a link. Write 1gbit"),
        (["2", "--link", "1bit"], "the least is 8kbit"),
        (["2", "--cpus", "0"], "'0' is not a whole number from 1 on"),
        (["2", "rlinf", "train"], "rlinf train is not understood. What runs on the hosts stands"),
    ],
)
def test_wrong_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["testbed", *words])
    assert left.value.code == 2 and said in " ".join(capsys.readouterr().err.split())


def test_without_namespaces_it_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rlinf.testbed.bed.unavailable", lambda: "they are forbidden")
    assert main(["testbed", "2", "--", "true"]) == 1
    assert "there can be no hosts on this machine: they are forbidden" in capsys.readouterr().err
