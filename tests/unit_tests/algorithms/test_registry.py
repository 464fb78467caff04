"""Names lead to functions; new ones need no edit anywhere else."""

import subprocess
import sys

import pytest
import torch
from pydantic import Field

from rlinf.algorithms import registry
from rlinf.algorithms.rewards import get_reward_class, register_reward, reward_registry
from rlinf.algorithms.rewards.base import Reward
from rlinf.config import Float, Section
from rlinf.config.plugin_table import FunctionTable, PluginTable
from rlinf.config.plugins import get_schema, known_names


def test_the_registry_imports_no_torch():
    code = (
        "import sys, rlinf.algorithms.registry as r, rlinf.algorithms.rewards\n"
        "names = [*r.advantage_registry, *r.policy_loss_registry]\n"
        "assert 'gae' in names and 'actor' in names\n"
        "assert not {'torch', 'ray', 'pydantic'} & set(sys.modules)\n"
        "r.get_adv_and_returns('gae')\n"
        "assert 'torch' in sys.modules and 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["gae", "GAE", "grpo", "reinpp", "raw"])
def test_advantages_are_found_whatever_the_case(name):
    assert callable(registry.get_adv_and_returns(name))


@pytest.mark.parametrize("name", ["actor", "Actor_Critic", "decoupled_actor_critic"])
def test_losses_are_found_whatever_the_case(name):
    assert callable(registry.get_policy_loss(name))


def test_documented_names_are_the_registered_functions():
    from rlinf.algorithms import advantages, losses

    gae = advantages.compute_gae_advantages_and_returns
    assert registry.get_adv_and_returns("gae") is gae
    assert registry.get_policy_loss("actor") is losses.compute_ppo_actor_loss
    assert registry.get_policy_loss("actor_critic") is losses.compute_ppo_actor_critic_loss
    assert losses.compute_grpo_actor_loss_fn is losses.compute_ppo_actor_loss


def test_an_unknown_name_lists_the_near_and_the_known_ones():
    with pytest.raises(ValueError, match="'gea'; did you mean 'gae'.*known: .*grpo"):
        registry.get_adv_and_returns("gea")
    with pytest.raises(ValueError, match="no loss is registered under the name 'actr'"):
        registry.policy_loss(loss_type="actr")


def test_a_new_advantage_works_by_decorator_alone():
    class Keys(Section):
        steepness: Float = Field(2.0, description="How steep.")

    @registry.register_advantage("Steep", schema=Keys, normalize=False)
    def steep(*, rewards, steepness):
        return rewards * steepness, None

    offered = {"rewards": torch.ones(2, 1), "steepness": 3.0, "gamma": 0.9, "dones": None}
    advantages, returns = registry.calculate_adv_and_returns(adv_type="steep", **offered)
    assert advantages.tolist() == [[3.0], [3.0]] and returns is None
    assert get_schema("advantage", "steep") is Keys
    assert registry.advantage_registry.arguments("steep") == {"rewards", "steepness"}
    assert not registry.normalizes("STEEP") and registry.normalizes("gae")
    assert not registry.normalizes("grpo")


def test_a_new_loss_works_by_decorator_alone_and_may_build_on_another():
    from rlinf.algorithms.losses import compute_ppo_actor_loss

    @registry.register_policy_loss("doubled", forwards=(compute_ppo_actor_loss,))
    def doubled(*, logprobs, times=2.0, **actor):
        loss, metrics = compute_ppo_actor_loss(logprobs=logprobs, **actor)
        return times * loss, metrics

    logprobs, advantages = torch.zeros(3), torch.tensor([1.0, 2.0, 6.0])
    loss, _ = registry.policy_loss(
        loss_type="doubled",
        logprobs=logprobs,
        old_logprobs=logprobs,
        advantages=advantages,
        values=torch.zeros(3),
    )
    assert loss.item() == -6.0
    assert "doubled" in known_names("loss")
    assert {"times", "clip_ratio_c"} <= registry.policy_loss_registry.arguments("doubled")
    assert "values" not in registry.policy_loss_registry.arguments("doubled")


def test_a_function_with_open_keywords_gets_everything():
    @registry.register_advantage("open")
    def everything(rewards, **others):
        return rewards, others

    _, others = registry.calculate_adv_and_returns(adv_type="open", rewards=1, anything=2)
    assert others == {"anything": 2}
    assert "gae_lambda" in registry.advantage_registry.arguments("open")


def test_an_argument_that_nobody_has_is_an_error():
    with pytest.raises(TypeError, match="no advantage has an argument 'gama'; did you mean 'gam"):
        registry.calculate_adv_and_returns(adv_type="raw", rewards=torch.ones(1, 1), gama=0.9)


def test_a_taken_name_needs_replaces():
    with pytest.raises(ValueError, match="loss 'Actor' is registered already.*replaces=True"):
        registry.register_policy_loss("Actor")(lambda **kwargs: None)


def test_a_builtin_can_be_replaced_before_it_is_imported(monkeypatch):
    table = FunctionTable("loss", {"actor": __name__})

    def mine(*, logprobs):
        return "mine"

    def builtin(*, logprobs):
        return "builtin"

    mine.__module__ = "somewhere.else"
    table.register_function("actor", mine, replaces=True)
    table.register_function("actor", builtin)
    assert table.call("Actor", {"logprobs": 1}) == "mine"


def test_the_same_item_may_be_registered_twice():
    table = PluginTable("loss", {})
    assert table.register("twice", print) and table.register("TWICE", print)
    assert len(table) == 1 and table["Twice"] is print and table.get("thrice") is None
    assert "loss: twice" in repr(table)


def test_rewards_are_classes_by_name():
    class LengthReward(Reward):
        pass

    register_reward("Length", LengthReward)
    assert get_reward_class("length") is LengthReward
    assert "LENGTH" in reward_registry and "length" in known_names("reward")
    with pytest.raises(ValueError, match="did you mean 'length'"):
        get_reward_class("lenght")
    with pytest.raises(ValueError, match="registered already"):
        register_reward("length", type("Other", (Reward,), {}))
