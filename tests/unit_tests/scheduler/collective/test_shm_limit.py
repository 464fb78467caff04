"""The limit on shared memory: what the environment says, and what the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.scheduler.collective.shm_limit import available_memory, given_limit

MiB = 1 << 20


@pytest.mark.parametrize("text", ["3 GB", "-1", "0", "1e9", ""])
def test_what_is_no_number_of_bytes_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_TRANSFER_MEMORY", text)
    with pytest.raises(ValueError, match=rf"RLINF_TRANSFER_MEMORY='{text}' must be a positive num"):
        given_limit()


def test_a_limit_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_TRANSFER_MEMORY", "4096")
    assert given_limit() == 4096
    monkeypatch.delenv("RLINF_TRANSFER_MEMORY")
    assert given_limit() is None


def test_files_that_a_container_has_cached_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{64 * MiB}\n")
    (tmp_path / "memory.current").write_text(f"{60 * MiB}\n")
    (tmp_path / "memory.stat").write_text(f"anon {20 * MiB}\ninactive_file {36 * MiB}\n")
    assert available_memory(str(tmp_path)) == 40 * MiB


def test_a_container_without_a_limit_has_what_the_machine_has(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(str(tmp_path)) > 64 * MiB
