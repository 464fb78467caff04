"""Questions about several items: what worked solutions of leads and workers do."""

from __future__ import annotations

from types import SimpleNamespace

from rlinf.data.datasets.wide_questions import ALONE, WideQuestionDataset


def dataset(**changes):
    values = {"min_items": 2, "max_items": 5, "team": True, "careless": 0.0}
    return WideQuestionDataset(
        SimpleNamespace(**values | {"size": 300, "val_size": 100} | changes), "train", 3
    )


def test_careless_leads_give_away_no_more_than_one_agent_has_room_for():
    careful, careless = dataset(), dataset(careless=0.6)
    stopped = longer = 0
    for i in range(300):
        one, other = careful[i], careless[i]
        assert (one.prompt, one.answer, one.task) == (other.prompt, other.answer, other.task)
        items = one.metadata["items"]
        tasks, found, said = (message["content"] for message in other.solution)
        given = tasks.count("<task>")
        assert given == found.count("<information>") == len(said.split())
        longer += items > ALONE
        if given < items:
            stopped += 1
            assert given == ALONE and one.solution[0]["content"].startswith(tasks)
        else:
            assert one.solution == other.solution
            assert said == f"<answer>{one.answer[0]}</answer>"
        # The worker does one of the tasks that were given away.
        assert other.further[0][0] in tasks
    assert longer * 0.5 < stopped < longer * 0.7
    assert careful.fingerprint() != careless.fingerprint()


def test_no_word_and_no_town_of_a_question_occurs_twice():
    data = dataset(max_items=8)
    for i in range(50):
        words = data[i].prompt.split()[1:-1]
        towns = data[i].answer[0].split()
        assert len(set(words)) == len(words) == 2 * len(towns)
        assert len(set(towns)) == len(towns) == data[i].metadata["items"]
