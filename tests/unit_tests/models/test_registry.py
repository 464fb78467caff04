"""Model types, their settings, and policies that users bring."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from omegaconf import OmegaConf
from pydantic import Field
from torch import nn

from rlinf.config import Int, Section, SupportedModel, plugins, reads, reset_reads, validate_cfg
from rlinf.models import get_model, register_model, registry
from rlinf.models.embodiment.base_policy import BasePolicy, ForwardType
from rlinf.models.embodiment.check_policy import check_policy
from rlinf.models.embodiment.distributions import AUTO, DISTRIBUTIONS
from rlinf.models.embodiment.mlp_policy import MLPPolicy
from rlinf.utils.env_spec import EnvSpec

SPEC = EnvSpec(obs_dim=6, action_dim=3, action_low=-1.0, action_high=1.0)


@pytest.fixture(autouse=True)
def fresh_registries(monkeypatch):
    # A module registers its schema once per process: all must be there before the copy.
    for kind in plugins.KINDS:
        for name in plugins.known_names(kind):
            plugins.get_schema(kind, name)
    for name in ("_builders", "_lazy"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    schemas = {kind: dict(names) for kind, names in plugins._schemas.items()}
    monkeypatch.setattr(plugins, "_schemas", schemas)
    monkeypatch.setattr(SupportedModel, "_known", dict(SupportedModel._known))


class CategoricalKeys(Section):
    """Keys of a policy that a user brings."""

    width: Int = Field(16, gt=0, description="Units of the hidden layer.")


def register_users_policy():
    """A policy with three choices per dimension; about what a page of documentation shows."""

    @register_model("three_choices", category="embodied", schema=CategoricalKeys)
    class ThreeChoices(BasePolicy):
        def __init__(self, cfg, torch_dtype):
            super().__init__(cfg.action_dim)
            layers = nn.Linear(cfg.obs_dim, cfg.width), nn.Tanh()
            self.net = nn.Sequential(*layers, nn.Linear(cfg.width, 3 * cfg.action_dim))
            self.to(torch_dtype)

        def _log_probs(self, states):
            return self.net(states).view(len(states), -1, 3).log_softmax(-1)

        def default_forward(
            self, forward_inputs, compute_logprobs=True, compute_entropy=False, compute_values=False
        ):
            logits = self._log_probs(forward_inputs["states"])
            chosen = logits.gather(-1, forward_inputs["action"].long().unsqueeze(-1))
            zeros = torch.zeros(len(logits), 1)
            entropy = -(logits.exp() * logits).sum(-1)
            return {"logprobs": chosen.squeeze(-1), "entropy": entropy, "values": zeros}

        @torch.no_grad()
        def predict_action_batch(self, env_obs, mode="train", **sampling):
            logits = self._log_probs(env_obs["states"])
            choice = logits.argmax(-1)
            if mode == "train":
                flat = logits.exp().flatten(0, 1)
                choice = torch.multinomial(flat, 1, generator=self.generator).view_as(choice)
            inputs = {"states": env_obs["states"], "action": choice.float()}
            out = self.default_forward(inputs)
            result = {"prev_logprobs": out["logprobs"], "prev_values": out["values"]}
            return choice.float().unsqueeze(1) - 1.0, {**result, "forward_inputs": inputs}

    return ThreeChoices


def test_a_user_brings_a_policy_by_decorator(make_obs):
    own = register_users_policy()
    policy = get_model({"model_type": "Three_Choices", "width": 8}, SPEC)
    assert isinstance(policy, own) and policy.net[0].out_features == 8
    assert check_policy(policy, make_obs()) == []
    with pytest.raises(ValueError, match="unknown key"):
        get_model({"model_type": "three_choices", "height": 8}, SPEC)
    with pytest.raises(ValueError, match="already has a builder"):
        register_model("three_choices", lambda cfg, torch_dtype: None)


def test_a_plain_builder_and_replacing_a_built_in(make_obs):
    register_model("tiny", lambda cfg, torch_dtype: nn.Linear(cfg.obs_dim, 1, dtype=torch_dtype))
    assert (
        get_model({"model_type": "tiny", "precision": "bf16"}, SPEC).weight.dtype == torch.bfloat16
    )
    with pytest.raises(ValueError, match="'mlp_policy' already has a builder"):
        register_model("mlp_policy", lambda cfg, torch_dtype: None)
    register_model("mlp_policy", lambda cfg, torch_dtype: nn.Identity(), replaces=True)
    assert isinstance(get_model({"model_type": "mlp_policy"}, SPEC), nn.Identity)


def test_unknown_types_list_near_ones():
    with pytest.raises(
        ValueError, match="'mlp_polcy' is not supported; .*did you mean 'mlp_policy'"
    ):
        get_model({"model_type": "mlp_polcy"}, SPEC)
    SupportedModel.register("announced", "embodied")
    with pytest.raises(ValueError, match="nothing builds it here; .* cnn_policy, .*mlp_policy"):
        get_model({"model_type": "announced"}, SPEC)


def test_sizes_come_from_config_or_env():
    assert get_model({"model_type": "mlp_policy"}, SPEC).obs_dim == 6
    alone = get_model({"model_type": "mlp_policy", "obs_dim": 5, "action_dim": 2})
    assert (alone.obs_dim, alone.action_dim, alone.action_range.low) == (5, 2, None)
    with pytest.raises(
        ValueError, match="model.obs_dim is 7, but .* are 6; set model.obs_dim to 6"
    ):
        get_model({"model_type": "mlp_policy", "obs_dim": 7}, SPEC)
    with pytest.raises(ValueError, match="model.action_dim is 4, but the .* are 3"):
        get_model({"model_type": "cnn_policy", "action_dim": 4}, SPEC)
    with pytest.raises(ValueError, match="action of the env are unknown: set model.action_dim"):
        get_model({"model_type": "mlp_policy", "obs_dim": 5})
    with pytest.raises(ValueError, match="bounds of the actions are not finite"):
        get_model({"model_type": "mlp_policy", "distribution": "squashed_gaussian"}, EnvSpec(6, 3))


def test_choices_come_from_config_or_env():
    choices = EnvSpec(obs_dim=4, action_choices=[2, 3])
    assert get_model({"model_type": "mlp_policy"}, choices).action_range.choices == (2, 3)
    keys = {"model_type": "mlp_policy", "obs_dim": 4, "action_choices": [2, 3]}
    alone = get_model(keys)
    assert alone.action_dim == 2 and alone.action_range.choices == (2, 3)
    assert get_model(keys, choices).action_dim == 2
    with pytest.raises(ValueError, match=r"action_choices is \[2, 3\], but .* are choices out of"):
        get_model(keys, EnvSpec(obs_dim=4, action_choices=[2]))
    with pytest.raises(ValueError, match="but the actions of the env are real numbers"):
        get_model({**keys, "obs_dim": 6}, SPEC)

    @register_model("sees_choices")
    def build(cfg, torch_dtype):
        return nn.Linear(cfg.obs_dim, sum(cfg.action_choices), dtype=torch_dtype)

    assert get_model({"model_type": "sees_choices"}, choices).out_features == 5


@pytest.mark.parametrize(
    ("keys", "spec", "message"),
    [
        (
            {"distribution": "categorical"},
            SPEC,
            "is categorical, but the env takes real numbers: set it to auto or gaussian or squ",
        ),
        (
            {"distribution": "gaussian"},
            EnvSpec(6, action_choices=[2]),
            "is gaussian, but the env takes a choice out of 2: set it to auto or categorical",
        ),
        (
            {"distribution": "categorical"},
            EnvSpec(6, action_choices=[2, 3]),
            "takes 2 choices at a time, out of 2, 3: set it to auto or multi_categorical",
        ),
        ({"distribution": "beta"}, SPEC, "auto"),
        (
            {"init_log_std": -1.0, "state_dependent_std": True},
            EnvSpec(6, action_choices=[2]),
            "has no effect: .* leave out state_dependent_std, init_log_std",
        ),
    ],
)
def test_a_distribution_that_does_not_fit(keys, spec, message):
    with pytest.raises(ValueError, match=message):
        get_model({"model_type": "mlp_policy", **keys}, spec)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_sizes": [128, 0]}, "must be"),
        ({"activation": "gelu"}, "tanh"),
        ({"hiden_sizes": [64]}, "hidden_sizes"),
        ({"init_log_std": 3.0}, "init_log_std 3.0 is outside of log_std_min -5.0 to log_std_max 2"),
        ({"is_lora": True}, "has no 'is_lora'"),
    ],
)
def test_bad_settings(keys, message):
    with pytest.raises(ValueError, match=message):
        get_model({"model_type": "mlp_policy", **keys}, SPEC)


def test_a_checked_config_is_taken_as_it_is_and_counts_reads():
    config = {
        "runner": {"task_type": "embodied", "max_steps": 1},
        "cluster": {"component_placement": {"actor,env,rollout": "0"}},
        "algorithm": {"adv_type": "gae", "loss_type": "actor_critic"},
        "env": {"train": {"env_type": "metaworld", "total_num_envs": 4, "max_episode_steps": 8}},
        "rollout": {},
        "actor": {
            "global_batch_size": 32,
            "micro_batch_size": 32,
            "model": {"model_type": "mlp_policy", "add_value_head": True, "hidden_sizes": [7]},
        },
    }
    section = validate_cfg(config).actor.model
    reset_reads()
    policy = get_model(section, SPEC)
    assert policy.policy_head.hidden[0].out_features == 7
    assert {"actor.model.hidden_sizes", "actor.model.model_type"} <= reads()
    assert section.obs_dim is None
    plain = OmegaConf.create({"model_type": "mlp_policy", "hidden_sizes": [9]})
    assert get_model(plain, SPEC).policy_head.hidden[0].out_features == 9
    assert plain == {"model_type": "mlp_policy", "hidden_sizes": [9]}


def test_the_schema_offers_every_distribution():
    field = plugins.get_schema("model", "mlp_policy").model_fields["distribution"]
    assert get_args(field.annotation) == (AUTO, *DISTRIBUTIONS)


def test_a_declared_forward_type_needs_its_method():
    with pytest.raises(
        TypeError, match="declares forward type 'nft' but has no method nft_forward"
    ):

        class Incomplete(MLPPolicy):
            forward_types = (ForwardType.DEFAULT, ForwardType.NFT)

    with pytest.raises(TypeError, match="declares forward type 'sac' but has no method sac_forwar"):

        class OnlyInherited(BasePolicy):
            forward_types = (ForwardType.DEFAULT, ForwardType.SAC)


def test_checking_a_config_loads_no_torch():
    program = (
        "import sys, rlinf.models\n"
        "from rlinf.config.plugins import get_schema\n"
        "get_schema('model', 'mlp_policy'), get_schema('model', 'cnn_policy')\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "False", done.stderr


def test_the_checker_finds_what_is_wrong(make_policy, make_obs):
    class Forgetful(MLPPolicy):
        def predict_action_batch(self, env_obs, mode="train", **sampling):
            actions, result = super().predict_action_batch(env_obs, mode, **sampling)
            result["prev_logprobs"] = result["prev_logprobs"] + 0.1
            result["forward_inputs"]["step"] = torch.zeros(3)
            return actions + 10.0 * torch.rand(()), result

    problems = "\n".join(check_policy(Forgetful(6, 3, env_spec=SPEC), make_obs()))
    assert "recomputed logprobs differ from prev_logprobs by up to 0.1" in problems
    assert "forward_inputs['step'] is not a tensor with the batch first" in problems
    assert "actions leave the range" in problems
    assert "not deterministic" in problems


def test_the_checker_asks_for_the_distribution_of_who_leaves_log_probabilities_out(make_obs):
    class Silent(MLPPolicy):
        def predict_action_batch(self, env_obs, mode="train", compute_logprobs=True):
            return super().predict_action_batch(env_obs, mode)

    class Other(MLPPolicy):
        def predict_action_batch(self, env_obs, mode="train", compute_logprobs=True):
            done = super().predict_action_batch(env_obs, mode, compute_logprobs=compute_logprobs)
            if not compute_logprobs:
                done[1]["distribution"].log_std = done[1]["distribution"].log_std + 0.1
            return done

    (silent,), (other,) = (
        check_policy(kind(6, 3, env_spec=SPEC), make_obs()) for kind in (Silent, Other)
    )
    assert silent == "predict_action_batch returns no distribution with compute_logprobs=False"
    assert other.startswith("recomputed logprobs differ from those of the distribution by up to")
