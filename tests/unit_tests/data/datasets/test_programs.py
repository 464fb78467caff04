"""Questions about lists that only programs see: worked solutions are what Python says."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from rlinf.data.datasets.programs import ProgramDataset

CFG = {"digits": 2, "longest": 4, "held_out": 0.2, "repairs": 1.0, "size": 300, "val_size": 100}


def dataset(split="train", **changes):
    return ProgramDataset(SimpleNamespace(**CFG | changes), split, 3)


def said(program, setup):
    """What the interpreter says, with errors told by their type."""
    names = {}
    exec(setup, names)
    try:
        return repr(eval(program, names))
    except Exception as error:
        return f"error: {type(error).__name__}"


@pytest.mark.parametrize("repairs", [0.0, 1.0])
def test_worked_solutions_are_what_python_says(repairs):
    most = 0
    data = dataset(repairs=repairs)
    for index in range(len(data)):
        record = data[index]
        setup, messages = record.metadata["python_setup"], record.solution
        runs = list(zip(messages[:-1:2], messages[1:-1:2], strict=True))
        for written, read in runs:
            program = re.fullmatch("<python>(.*)</python>", written["content"])[1]
            assert read["content"] == f"<information>{said(program, setup)}</information>"
        assert messages[-1]["content"] == f"<answer>{record.answer}</answer>"
        assert said(program, setup) == record.answer
        assert setup.split()[0] not in record.prompt.split()
        most = max(most, len(runs))
    assert most == (3 if repairs else 1)


def test_validation_is_never_trained_on():
    asked = {
        split: {(r.prompt, re.sub(r"[ab'=]", "", r.metadata["python_setup"])) for r in records}
        for split, records in (
            ("train", [dataset()[i] for i in range(300)]),
            ("val", [dataset("val")[i] for i in range(100)]),
        )
    }
    assert not asked["train"] & asked["val"] and len(asked["val"]) > 50
    assert dataset().fingerprint() != dataset(repairs=0.5).fingerprint()
