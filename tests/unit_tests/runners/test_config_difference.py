"""Which changes of the configuration make it another run."""

from __future__ import annotations

import pytest

from rlinf.runners.config_difference import describe, differences

BASE = {
    "runner": {"max_steps": 10, "seed": 1, "logger": {"log_path": "a"}},
    "actor": {"optim": {"lr": 1e-3, "lr_scheduler": "constant"}},
    "cluster": {"num_nodes": 1},
    "env": {"train": {"task": "reach-v3"}, "eval": {"seed": 1}},
}


def changed(**sections):
    return {name: BASE[name] | sections.get(name, {}) for name in BASE}


def test_how_long_where_and_what_is_looked_at_are_free():
    now = changed(
        runner={
            "max_steps": 20,
            "resume_dir": "auto",
            "logger": {"log_path": "b"},
            "ext_modules": ["a"],
        },
        cluster={"num_nodes": 2},
        env={"train": BASE["env"]["train"], "eval": {"seed": 2}},
    )
    now["rollout"] = {"eval_batch_size": 32}
    assert differences(BASE, now) == []


@pytest.mark.parametrize(
    "change", [{"eval_tokens": "median"}, {"rtc": {"delay": 2, "max_guidance": 0.0}}]
)
def test_how_an_evaluation_acts_is_free(change):
    model = {"eval_tokens": "likeliest", "rtc": {"delay": 2, "max_guidance": 5.0}}
    then, now = (changed(actor={**BASE["actor"], "model": m}) for m in (model, model | change))
    assert differences(then, now) == []
    assert differences(then, now, only_model=True) == []
    other = changed(actor={**BASE["actor"], "model": model | {"rtc": {"delay": 3}}})
    assert differences(then, other)


def test_how_an_evaluation_acts_counts_where_rollouts_act_like_it():
    then, now = (
        changed(actor={**BASE["actor"], "model": {"eval_tokens": tokens}})
        | {"algorithm": {"dagger": {"init_beta": 1.0}}}
        for tokens in ("likeliest", "median")
    )
    assert [key for key, _, _ in differences(then, now)] == ["actor.model.eval_tokens"]
    assert differences(then, now, only_model=True) == []


@pytest.mark.parametrize(
    "sections, key",
    [
        ({"runner": {"seed": 2}}, "runner.seed"),
        ({"env": {"train": {"task": "push-v3"}, "eval": {"seed": 1}}}, "env.train.task"),
        ({"actor": {"optim": {"lr": 1e-4, "lr_scheduler": "constant"}}}, "actor.optim.lr"),
    ],
)
def test_what_changes_the_numbers_is_named(sections, key):
    found = differences(BASE, changed(**sections))
    assert [name for name, _, _ in found] == [key]
    assert "then" in describe(found) and key in describe(found)


def test_the_length_counts_when_the_schedule_depends_on_it():
    cosine = {"actor": {"optim": {"lr": 1e-3, "lr_scheduler": "cosine"}}}
    found = differences(changed(**cosine), changed(runner={"max_steps": 20}, **cosine))
    assert [name for name, _, _ in found] == ["runner.max_steps"]


def test_an_evaluation_asks_for_the_same_policy_and_no_more():
    model = {"model": {"hidden_sizes": [8], "model_path": "/gone"}}
    then = changed(actor={**BASE["actor"], **model})
    now = changed(
        runner={"seed": 2},
        env={"train": {"task": "push-v3"}, "eval": {"seed": 2}},
        actor={"optim": {"lr": 1.0}, "model": {"hidden_sizes": [8], "model_path": None}},
    )
    assert len(differences(then, now)) > 3
    assert differences(then, now, only_model=True) == []
    now["actor"]["model"]["hidden_sizes"] = [16]
    assert differences(then, now, only_model=True) == [("actor.model.hidden_sizes", [8], [16])]
