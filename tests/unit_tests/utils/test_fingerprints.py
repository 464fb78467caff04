"""The file of fingerprints: hashes of any checksum, and a run that goes on where it left off."""

import json

import pytest

from rlinf.utils.fingerprints import (
    FILE,
    FingerprintWriter,
    read_fingerprints,
    short_hashes,
    split_hashes,
)

NAMES = {"gradient": ["a"], "weights": ["a", "b"]}


def test_hashes_are_of_equal_length_and_signs_do_not_matter():
    text = short_hashes([0, 1, -1, (1 << 64) - 1, 1 << 63])
    assert split_hashes(text) == ["00000000", "00000001", "00000000", "00000000", "80000000"]
    assert short_hashes([]) == "" and split_hashes("") == []
    assert short_hashes([1 << 40]) != short_hashes([1 << 41])


def write(folder, first, last):
    writer = FingerprintWriter(folder)
    is_new = writer.start(first, {"device": "cpu"}, NAMES)
    for step in range(first + 1, last + 1):
        writer.write(step, {"weights": f"{step:08x}{first:08x}"})
    return is_new


def test_what_was_written_is_read(tmp_path):
    assert write(tmp_path, 0, 3)
    found = read_fingerprints(tmp_path)
    assert (found.facts, found.names) == ({"device": "cpu"}, NAMES)
    assert list(found.steps) == [1, 2, 3] and found.steps[2]["weights"] == "0000000200000000"


def test_a_resumed_run_drops_what_it_makes_again(tmp_path):
    write(tmp_path, 0, 5)
    assert not write(tmp_path, 3, 6)
    steps = read_fingerprints(tmp_path).steps
    assert list(steps) == [1, 2, 3, 4, 5, 6]
    assert [step["weights"][8:] for step in steps.values()] == ["0" * 8] * 3 + ["00000003"] * 3


def test_a_run_from_the_beginning_begins_a_new_file(tmp_path):
    write(tmp_path, 0, 5)
    assert write(tmp_path, 0, 1)
    assert list(read_fingerprints(tmp_path).steps) == [1]


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    write(tmp_path, 0, 2)
    path = tmp_path / FILE
    path.write_text(path.read_text()[:-5])
    assert list(read_fingerprints(tmp_path).steps) == [1]
    write(tmp_path, 1, 2)
    assert list(read_fingerprints(tmp_path).steps) == [1, 2]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        read_fingerprints(tmp_path / "absent")
    with pytest.raises(ValueError, match="runner.deterministic: true"):
        read_fingerprints(tmp_path)
    (tmp_path / FILE).write_text(json.dumps({"format": 99}) + "\n")
    with pytest.raises(ValueError, match="not of this version"):
        read_fingerprints(tmp_path)
