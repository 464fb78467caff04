"""Questions about lists that only programs see: worked solutions are what Python says."""

from __future__ import annotations

import re
from types import SimpleNamespace

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


def runs_of(record):
    """Programs of a worked solution, and what it answers; each was told what Python says."""
    *steps, last = [message["content"] for message in record.solution]
    programs = [re.fullmatch("<python>(.*)</python>", step)[1] for step in steps[::2]]
    setup = record.metadata["python_setup"]
    assert steps[1::2] == [f"<information>{said(p, setup)}</information>" for p in programs]
    return programs, re.fullmatch("<answer>(.*)</answer>", last)[1]


def test_worked_solutions_repair_the_simplest_program_by_what_python_says():
    data, counts = dataset(), set()
    for index in range(len(data)):
        record = data[index]
        programs, answer = runs_of(record)
        setup = record.metadata["python_setup"]
        assert "map" not in programs[0] and "b" not in programs[0]
        assert said(programs[-1], setup) == record.answer == answer
        assert setup.split()[0] not in record.prompt.split()
        counts.add(len(programs))
    assert counts == {1, 2, 3}


def test_without_repairs_the_first_program_has_the_last_word():
    data, careful = dataset(repairs=0.0), dataset()
    wrong = 0
    for index in range(len(data)):
        (program,), answer = runs_of(data[index])
        assert answer == said(program, data[index].metadata["python_setup"])
        assert program == runs_of(careful[index])[0][0]
        wrong += answer != data[index].answer
    assert len(data) * 0.5 < wrong < len(data) * 0.8


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
