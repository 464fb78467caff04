"""Questions about facts: those of a validation are in no training, and a search finds them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlinf.agents.search.text_index import TextIndex
from rlinf.config import build_config, validate_cfg
from rlinf.data.datasets import make_dataset
from rlinf.data.datasets.facts import FIRST, LAST, RELATIONS
from rlinf.data.prompts import documents_of_run
from rlinf.data.tokenizer import tokenizer_of_run


def section(**changes):
    values = {"type": "facts", "people": 200, "held_out": 0.2, "hops": [1, 2], "careless": 0.0}
    return SimpleNamespace(**values | {"size": 300, "val_size": 100} | changes)


def people(text):
    words = text.replace("<", " <").replace(">", "> ").split()
    return {pair for pair in zip(words, words[1:], strict=False) if pair[0] in FIRST}


def whole(record):
    return " ".join([record.prompt, *(message["content"] for message in record.solution)])


def test_nobody_of_a_validation_has_a_part_in_training():
    train, val = (make_dataset(section(), split, seed=1) for split in ("train", "val"))
    assert (len(train), len(val)) == (300, 100)
    trained = set().union(*(people(whole(train[i])) for i in range(300)))
    tested = set().union(*(people(whole(val[i])) for i in range(100)))
    assert len(tested) > 20 and len(trained) > 100 and not tested & trained
    # Their names are made of words that training sees.
    assert {first for first, _ in tested} <= {first for first, _ in trained}
    assert {last for _, last in tested} <= {last for _, last in trained}


@pytest.mark.parametrize("split", ["train", "val"])
def test_solutions_are_what_a_search_finds(split):
    data = make_dataset(section(), split, seed=1)
    index = TextIndex.of(data.documents())
    assert len(index) == 200 * len(RELATIONS)
    for i in range(100):
        record = data[i]
        hops = i % 2 + 1
        assert record.task == ("one_hop", "two_hop")[hops - 1]
        *steps, last = [message["content"] for message in record.solution]
        assert len(steps) == 2 * hops and last == f"<answer>{record.answer}</answer>"
        for asked, told in zip(steps[::2], steps[1::2], strict=True):
            query = asked.removeprefix("<search>").removesuffix("</search>")
            (hit,) = index.search(query, 1)
            assert told == f"<information>{hit.document.text}</information>"
        assert steps[-1].endswith(f"is {record.answer}</information>")


def test_a_question_of_two_facts_names_the_last_one_first():
    data = make_dataset(section(hops=[2]), "val", seed=3)
    record = data[0]
    words = record.prompt.split()
    second, first, name = words[3], words[6], " ".join(words[8:10])
    facts = {document.id: document.text for document in data.documents()}
    between = facts[f"{first} of {name}"].partition(" is ")[2]
    assert facts[f"{second} of {between}"].endswith(f" is {record.answer}")


def test_careless_solutions_stop_at_the_first_fact():
    careful, careless = (
        make_dataset(section(careless=share), "train", seed=3) for share in (0.0, 0.6)
    )
    stopped = 0
    for i in range(300):
        one, other = careful[i], careless[i]
        # The questions are the same, and so are those of one fact in all.
        assert (one.prompt, one.answer, one.task) == (other.prompt, other.answer, other.task)
        if one.solution != other.solution:
            stopped += 1
            assert one.task == "two_hop" and other.solution[:2] == one.solution[:2]
            first = other.solution[1]["content"].removesuffix("</information>")
            said = other.solution[2]["content"]
            assert said == f"<answer>{first.partition(' is ')[2]}</answer>"
    assert 70 < stopped < 110


def test_records_follow_from_seed_and_place():
    one, same, other = (make_dataset(section(), "val", seed) for seed in (1, 1, 2))
    assert [one[i] for i in range(50)] == [same[i] for i in range(50)]
    assert [one[i].prompt for i in range(50)] != [other[i].prompt for i in range(50)]
    assert one.documents() == same.documents() != other.documents()
    assert one.redraw(3, 1).prompt != one[3].prompt and one.redraw(3, 0) == one[3]
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_the_recipe_has_a_token_for_each_word_and_room_for_each_episode():
    from pathlib import Path

    configs = Path(__file__).resolve().parents[4] / "examples" / "agents" / "config"
    cfg = validate_cfg(build_config("searchr1_small", [], configs))
    tokenizer = tokenizer_of_run(cfg)
    assert cfg.actor.model.hf_config["vocab_size"] == len(tokenizer)
    unknown = tokenizer.convert_tokens_to_ids("<unk>")
    for document in documents_of_run(cfg)():
        assert unknown not in tokenizer.encode(document.text)
    data = make_dataset(cfg.data, "val", 0)
    for i in range(40):
        prompt, rest = tokenizer.encode(data[i].prompt), tokenizer.encode(whole(data[i]))
        assert unknown not in rest and len(prompt) <= cfg.data.max_prompt_length
        assert len(rest) < cfg.agentloop.max_total_tokens
    assert len(LAST) == len(set(LAST)) == 32 and len(FIRST) == len(set(FIRST)) == 32
