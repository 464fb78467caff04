"""What cannot be called as it will be is refused where it is registered."""

from __future__ import annotations

import re

import pytest
from pydantic import Field

from rlinf.algorithms import registry
from rlinf.algorithms.registry import register_advantage, register_policy_loss
from rlinf.algorithms.rewards import register_reward, reward_registry
from rlinf.config import Float, Section
from rlinf.config.schema.algorithm import EmbodiedAlgorithmConfig, ReasoningAlgorithmConfig
from rlinf.config.signatures import Call, check_call, check_method
from rlinf.data.datasets import register_dataset
from rlinf.envs.base import VectorEnv
from rlinf.envs.registry import register_env
from rlinf.hybrid_engines.generation import register_engine
from rlinf.models import register_model
from rlinf.workers.actor.registry import register_learner


def refused(message: str):
    return pytest.raises(ValueError, match=re.escape(message))


@pytest.mark.parametrize(
    "function",
    [
        lambda cfg, dtype: None,
        lambda *args: None,
        lambda cfg, dtype, more=1, **kwargs: None,
        lambda a, /, b: None,
    ],
)
def test_defaults_and_open_arguments_are_fine(function):
    check_call("model 'x'", function, Call(("cfg", "torch_dtype")))


def test_expected_and_given_are_both_told():
    with refused("model 'x' must take (cfg, torch_dtype), but takes (cfg): too many"):
        check_call("model 'x'", lambda cfg: None, Call(("cfg", "torch_dtype")))
    with refused("must take (a) or (a, *, b), but takes (): too many"):
        check_call("it", lambda: None, Call(("a",)), Call(("a",), ("b",)))
    with refused("it must take (a), but is 3, no function"):
        check_call("it", 3, Call(("a",)))


def test_methods_of_all_kinds():
    class Thing:
        def plain(self, a): ...

        @staticmethod
        def static(a): ...

        @classmethod
        def of_class(cls, a): ...

        def forgot(): ...  # noqa: N805

    for name in ("plain", "static", "of_class"):
        check_method("it", Thing, name, Call(("a",)))
        with refused(f"it: {name} must take (a, b), but takes (a): too many"):
            check_method("it", Thing, name, Call(("a", "b")))
    with refused("it: forgot must take (), but takes ()"):
        check_method("it", Thing, "forgot", Call())
    with refused("it must have a method absent(a); the class Thing has none"):
        check_method("it", Thing, "absent", Call(("a",)))


def test_rewards():
    class Silent:
        def __init__(self, cfg): ...

    class Old(Silent):
        def score(self, response, answer): ...

    class Unmade(Old):
        def __init__(self): ...

    with refused("reward 'bad' must have a method score(response, answer, *, prompt, metadata)"):
        register_reward("bad", Silent)
    with refused(
        "reward 'bad': score must take (response, answer, *, prompt, metadata), but takes "
        "(response, answer): got an unexpected keyword argument 'prompt'"
    ):
        register_reward("bad", Old)
    with refused("reward 'bad' must take (cfg), but takes ()"):
        register_reward("bad", Unmade)
    assert "bad" not in reward_registry


def test_advantages_and_losses_name_what_is_offered():
    class Keys(Section):
        steepness: Float = Field(2.0, description="How steep.")

    def steep(*, reward, steepness=1.0): ...

    with refused("advantage 'bad' must take keyword arguments out of: "):
        register_advantage("bad")(steep)
    with pytest.raises(ValueError, match="there is no 'reward'; did you mean 'rewards'"):
        register_advantage("bad")(steep)
    with pytest.raises(ValueError, match="no 'steepness'; give it a default, or make it a key"):
        register_advantage("bad")(lambda *, rewards, steepness: None)
    register_advantage("good_for_tests", schema=Keys)(lambda *, rewards, steepness: None)
    with pytest.raises(ValueError, match="loss 'bad' .*'logprobs' cannot be given by name"):
        register_policy_loss("bad")(lambda logprobs, /: None)
    assert "bad" not in registry.advantage_registry and "bad" not in registry.policy_loss_registry


@pytest.mark.parametrize(
    ("table", "tensors"),
    [
        (registry.advantage_registry, registry.ADVANTAGE_TENSORS),
        (registry.policy_loss_registry, registry.LOSS_TENSORS),
    ],
)
def test_what_is_offered_is_what_the_built_in_functions_take(table, tensors):
    table.load_builtin()
    names = ("gae", "grpo", "reinpp", "raw") if "gae" in table else ("decoupled_actor_critic",)
    taken = frozenset().union(*(table.arguments(name) for name in names))
    keys = {*EmbodiedAlgorithmConfig.model_fields, *ReasoningAlgorithmConfig.model_fields}
    # The trainer gives the greatest length if the config does not.
    assert taken - keys - {"loss_length"} == tensors


def test_learners():
    class Learner:
        def __init__(self, cfg, model): ...

    with refused("learner 'bad' must take (cfg, model, place) or (cfg, model, place, critic), but"):
        register_learner("bad")(Learner)

    class WithoutUpdate:
        def __init__(self, cfg, model, place): ...

        def prepare(self, batch, env_ids): ...

        @classmethod
        def rollout_needs(cls, cfg): ...

    with refused("learner 'bad' must have a method update()"):
        register_learner("bad")(WithoutUpdate)


def test_models_and_policies():
    with refused("model 'bad' must take (cfg, torch_dtype), but takes (cfg)"):
        register_model("bad", lambda cfg: None)

    class Policy:
        def __init__(self, cfg, torch_dtype, env_spec=None): ...

        def predict_action_batch(self, env_obs): ...

    with refused("model 'bad': predict_action_batch must take (env_obs, *, mode), but takes (env"):
        register_model("bad")(Policy)


def test_envs():
    class OldStyle:
        def reset(self): ...

        def step(self, action): ...

    with refused("env 'bad': reset must take (*, seed), but takes (self)"):
        register_env("bad", OldStyle)

    class Keys(Section):
        length: Float = 1.0

    with refused("env 'bad' must take (*, length), the keys of its schema, but takes (size)"):
        register_env("bad", lambda size: None, Keys)

    class Own(VectorEnv):
        def __init__(self, cfg, num_envs): ...

    with refused("env 'bad' must take (cfg, *, num_envs, seed_offset, total_num_processes, worker"):
        register_env("bad", Own)


def test_datasets_and_engines():
    with refused("dataset 'bad' must take (cfg, split, seed), but takes ()"):
        register_dataset("bad")(type("Data", (), {"__init__": lambda self: None}))
    with refused("generation engine 'bad' must have a method from_settings(settings)"):
        register_engine("bad", type("Engine", (), {}))
