"""A policy that acts: the same numbers whoever holds it, and a complete record."""

import copy

import pytest
import torch

from rlinf.data.embodied import merge_trajectories
from rlinf.data.embodied_messages import BEGINS, EARLY, EPISODES, pack_observations
from rlinf.models import get_model
from rlinf.models.embodiment.head_settings import HeadSettings
from rlinf.models.embodiment.mlp_policy import MLPPolicy
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.rollout import trajectory_recorder
from rlinf.workers.rollout.rollout_policy import RolloutPolicy

SPEC = EnvSpec(obs_dim=3, action_dim=2, action_low=[-1, -1], action_high=[1, 1])
CHUNKS = 4


def policy():
    torch.manual_seed(0)
    keys = {"model_type": "mlp_policy", "num_action_chunks": 2, "add_value_head": True}
    return get_model(keys | {"orthogonal_init": False}, SPEC, torch.float32).eval()


def acting(*stages, **kwargs):
    made = RolloutPolicy(policy(), torch.device("cpu"), stages, seed=5, **kwargs)
    made.version = 3
    return made


def states(chunk, envs):
    """What env e observes after so many chunks."""
    rows = [torch.randn(3, generator=torch.Generator().manual_seed(100 * chunk + e)) for e in envs]
    return {"states": torch.stack(rows)}


def message(chunk, envs, ended=()):
    infos = {}
    if any(env in ended for env in envs):
        infos["final_observation"] = states(chunk + 50, envs)
        infos["_final_observation"] = torch.tensor([env in ended for env in envs])
    return pack_observations(states(chunk, envs), infos)


def roll(made, *stages, ended=None):
    """Plays an epoch; `ended` are the envs whose episode ends with a chunk, by chunk."""
    ended = ended or {}
    made.begin_rollout(CHUNKS)
    made.begin_epoch()
    actions = []
    for chunk in range(CHUNKS):
        for stage, envs in enumerate(stages):
            step = made.steps + chunk
            own = message(chunk, envs, ended.get(chunk, ()))
            actions.append(made.act(stage, own, 0, chunk, step))
    out = [
        made.finish(stage, message(CHUNKS, envs, ended.get(CHUNKS, ())), CHUNKS)
        for stage, envs in enumerate(stages)
    ]
    return actions, merge_trajectories(out)


def test_envs_may_be_split_over_stages_and_processes_at_will():
    _, whole = roll(acting(range(4)), range(4))
    _, stages = roll(acting([0, 1], [2, 3]), [0, 1], [2, 3])
    halves = [roll(acting(own), own)[1] for own in ([0, 1], [2, 3])]
    processes = merge_trajectories(halves)
    for other in (stages, processes):
        for key, tensor in whole.forward_inputs.items():
            torch.testing.assert_close(other.forward_inputs[key], tensor, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(other.prev_logprobs, whole.prev_logprobs, rtol=1e-4, atol=1e-5)
    assert whole.versions.eq(3).all() and whole.prev_values.shape == (CHUNKS + 1, 4, 1)


def values_of(policy, envs):
    """Values of what envs observe in an epoch, computed step by step."""
    return torch.stack([policy.predict_values(states(chunk, envs)) for chunk in range(CHUNKS + 1)])


@pytest.mark.parametrize("rows", [1, 8, 1000])
def test_values_of_an_epoch_are_computed_at_once(rows, monkeypatch):
    monkeypatch.setattr(trajectory_recorder, "_ROWS", rows)
    made, asked = acting(range(3)), []
    forward = made.policy.default_forward

    def counted(inputs, **what):
        asked.append(len(inputs["states"]))
        return forward(inputs, **what)

    monkeypatch.setattr(made.policy, "default_forward", counted)
    _, record = roll(made, range(3))
    assert asked == {1: [3] * CHUNKS, 8: [6] * (CHUNKS // 2), 1000: [3 * CHUNKS]}[rows]
    assert not record.prev_values.is_inference()
    torch.testing.assert_close(record.prev_values, values_of(made.policy, range(3)))


def test_steps_have_the_values_of_the_weights_that_made_them():
    arrives = {2: 4, 3: 5}
    asked = iter(range(-1, CHUNKS))
    before_change, made_by = {}, []

    def newer(wait, before):
        version = arrives.get(next(asked))
        if version is not None:
            before()
            before_change[version] = values_of(made.policy, range(3))
            made_by.append(copy.deepcopy(made.policy))
            with torch.no_grad():
                for weight in made.policy.parameters():
                    weight.mul_(1.5)
        return version

    made = acting(range(3), newer=newer)
    _, record = roll(made, range(3))
    assert record.versions[:, 0].tolist() == [3, 3, 4, 5]
    last = values_of(made.policy, range(3))
    expected = torch.cat([before_change[4][:2], before_change[5][2:3], last[3:]])
    assert (expected - last).abs().max() > 1e-3
    torch.testing.assert_close(record.prev_values, expected)
    judged = []
    for chunk, by in enumerate([made_by[0], made_by[0], made_by[1], made.policy]):
        inputs = {key: own[chunk] for key, own in record.forward_inputs.items()}
        with torch.inference_mode():
            judged.append(by.default_forward(inputs)["logprobs"])
    torch.testing.assert_close(record.prev_logprobs, torch.stack(judged))


class StepByStep(MLPPolicy):
    """Does not say that it can leave out what the learner needs."""

    def predict_action_batch(self, env_obs, mode="train", noise=None, **sampling):
        return super().predict_action_batch(env_obs, mode, noise, **sampling)


CHOICES = EnvSpec(obs_dim=3, action_dim=2, action_choices=[3, 4])
KINDS = {
    "gaussian": ({}, SPEC),
    "of the state": ({"state_dependent_std": True}, SPEC),
    "squashed": ({"distribution": "squashed_gaussian"}, SPEC),
    "deterministic": ({"distribution": "deterministic"}, SPEC),
    "choices": ({}, CHOICES),
    "shared trunk": ({"share_trunk": True}, SPEC),
    "no values": ({"add_value_head": False}, SPEC),
    "value per action": ({"value_type": "action_level"}, SPEC),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_is_the_same_whether_steps_are_judged_at_once_or_one_by_one(kind):
    keys, spec = KINDS[kind]
    settings = HeadSettings(**{"num_action_chunks": 2, "add_value_head": True} | keys)
    records = []
    for policy_cls in (MLPPolicy, StepByStep):
        torch.manual_seed(0)
        own = policy_cls(3, 2, settings, spec).eval()
        made = RolloutPolicy(own, torch.device("cpu"), [range(3)], seed=5)
        records.append(roll(made, range(3), ended={2: [1]})[1])
    at_once, one_by_one = records
    for key, tensor in one_by_one.forward_inputs.items():
        assert torch.equal(at_once.forward_inputs[key], tensor), key
    for name in ("prev_logprobs", "prev_values", "bootstrap_values"):
        own, other = getattr(at_once, name), getattr(one_by_one, name)
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
        assert not own.is_inference(), "a learner may ask gradients of it"
    assert at_once.prev_values.any() == (kind != "no values")


def test_ends_have_the_value_of_the_observation_in_which_they_came():
    made = acting(range(3), keep_final=True)
    _, record = roll(made, range(3), ended={2: [1], CHUNKS: [0, 2]})
    values = {
        (t, env): made.policy.predict_values(states(chunk + 50, [env]))
        for (t, env), chunk in {(1, 1): 2, (3, 0): CHUNKS, (3, 2): CHUNKS}.items()
    }
    for t in range(CHUNKS):
        for env in range(3):
            expected = values.get((t, env), torch.zeros(1, 1))
            torch.testing.assert_close(record.bootstrap_values[t, env], expected[0])
    places = list(zip(record.final.steps.tolist(), record.final.envs.tolist(), strict=True))
    assert places == [(1, 1), (3, 0), (3, 2)]
    expected = torch.cat([states(52, [1])["states"], states(CHUNKS + 50, [0, 2])["states"]])
    assert torch.equal(record.final.obs["states"], expected)


def test_of_ends_the_learner_gets_what_a_replay_buffer_keeps(monkeypatch):
    made = acting(range(2), keep_final=True)

    def letters(obs):
        return {"letters": torch.tensor([[len(text)] for text in obs["task_descriptions"]])}

    monkeypatch.setattr(made.policy, "replay_inputs", letters)
    made.begin_rollout(2)
    made.begin_epoch()
    for chunk, ended in enumerate(([], [1], [])):
        own = message(chunk, range(2), ended)
        for obs in (own["obs"], own.get("final", {})):
            rows = len(obs.get("states", ()))
            obs["task_descriptions"] = ["close", "open it"][-rows:]
        if chunk < 2:
            made.act(0, own, 0, chunk, chunk)
    record = made.finish(0, own, 2)
    assert record.final.steps.tolist() == [0] and record.final.envs.tolist() == [1]
    assert {name: value.tolist() for name, value in record.final.obs.items()} == {"letters": [[7]]}


def test_nobody_gets_final_observations_who_does_not_need_them():
    _, record = roll(acting(range(2)), range(2), ended={1: [0]})
    assert record.final is None
    _, record = roll(acting(range(2), keep_final=True), range(2))
    assert record.final.steps.tolist() == [] and record.final.obs["states"].shape == (0, 3)


def test_what_is_not_finite_marks_the_steps_before_and_after():
    said = []
    made = acting(range(2), on_nan="skip", warn=said.append)
    made.begin_rollout(2)
    made.begin_epoch()
    bad = message(1, range(2))
    bad["obs"]["states"][1] = torch.nan
    made.act(0, message(0, range(2)), 0, 0, 0)
    made.act(0, bad, 0, 1, 1)
    record = made.finish(0, message(2, range(2)), 2)
    assert record.finite.tolist() == [[True, False], [True, False]] and len(said) == 1
    with pytest.raises(FloatingPointError, match="'states' of env 1"):
        strict = acting(range(2))
        strict.begin_rollout(2)
        strict.begin_epoch()
        bad["obs"]["states"][1] = torch.nan
        strict.act(0, bad, 0, 0, 0)


def test_an_evaluation_acts_without_noise_and_only_where_an_episode_runs():
    made = acting(range(3))
    asked = message(0, range(3)) | {EPISODES: torch.tensor([4, -1, 2])}
    actions = made.evaluate(asked, [0, 1, 2], 0)
    plain = made.policy.predict_action_batch(states(0, range(3)), mode="eval")[0]
    torch.testing.assert_close(actions[[0, 2]], plain[[0, 2]])
    assert not actions[1].any()


@pytest.mark.parametrize("batch", [None, 5, 32])
def test_an_evaluation_has_batches_of_one_size_and_equal_actions_for_any_spread(batch, monkeypatch):
    made, seen = acting(range(12), **({} if batch is None else {"eval_batch": batch})), []
    predict = made.policy.predict_action_batch

    def counted(obs, **how):
        seen.append(len(obs["states"]))
        return predict(obs, **how)

    monkeypatch.setattr(made.policy, "predict_action_batch", counted)

    def actions_of(episodes):
        asked = {"obs": states(0, episodes), EPISODES: torch.tensor(episodes)}
        return made.evaluate(asked, episodes, 0)

    whole = actions_of(list(range(12)))
    assert seen == [batch or 8] * {None: 2, 5: 3, 32: 1}[batch]
    for spread in ([[0], [11, 3, 5], [9]], [list(range(11, 5, -1))], [[4, 9, 2, 7], [8, 1, 6]]):
        for episodes in spread:
            assert torch.equal(actions_of(episodes), whole[episodes])
    assert set(seen) == {batch or 8}


def test_a_run_may_begin_with_actions_that_are_drawn_uniformly():
    actions, record = roll(acting(range(4), random_chunks=2), range(4))
    free, _ = roll(acting(range(4)), range(4))
    assert not any(torch.equal(a, b) for a, b in zip(actions[:2], free[:2], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(actions[2:], free[2:], strict=True))
    # The record is of what was done, so that a learner can compare it.
    again = policy().default_forward(
        {key: value.flatten(0, 1) for key, value in record.forward_inputs.items()}
    )
    logprobs = record.prev_logprobs.flatten(0, 1)
    torch.testing.assert_close(again["logprobs"], logprobs, rtol=1e-4, atol=1e-4)
    # Steps of the whole run count, not those of a rollout.
    later = acting(range(4), random_chunks=2)
    later.steps = 2
    earlier = acting(range(4))
    earlier.steps = 2
    assert torch.equal(roll(later, range(4))[0][0], roll(earlier, range(4))[0][0])


def plans_ahead(*stages, delay=1, rollouts="anew", **how):
    torch.manual_seed(0)
    keys = {"model_type": "flow_policy", "num_action_chunks": 2, "action_horizon": 5}
    own = get_model(
        {**keys, "rtc": {"delay": delay, "rollouts": rollouts}}, SPEC, torch.float32
    ).eval()
    return RolloutPolicy(own, torch.device("cpu"), stages, seed=5, **how)


class Deaf(MLPPolicy):
    """Says that it goes on with plans, and takes none."""

    carries_plan = True


class DeafAhead(MLPPolicy):
    """Says that it plans ahead, and is not to be told."""

    decided_in_rollouts = 1

    def predict_action_batch(self, env_obs, mode="train", decided=None, **sampling):
        return super().predict_action_batch(env_obs, mode)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Deaf, "carries_plan = True, but its predict_action_batch takes no plan"),
        (DeafAhead, "decided_in_rollouts = 1, but its predict_action_batch takes no now"),
    ],
)
def test_plans_do_not_get_lost_among_other_arguments(kind, said):
    with pytest.raises(ValueError, match=said):
        RolloutPolicy(kind(3, 2, HeadSettings(), SPEC), torch.device("cpu"), [range(2)], seed=5)


def test_envs_and_policy_agree_on_plans_that_are_made_ahead_of_time():
    unaware, aware = acting(range(2)), plans_ahead(range(2), rollouts="delayed")
    for made in (unaware, aware):
        made.begin_rollout(2)
        made.begin_epoch()
    shown = message(1, range(2)) | {EARLY: states(0, range(2))}
    with pytest.raises(ValueError, match="decided_in_rollouts = 0, and is shown earlier obs"):
        unaware.act(0, shown, 0, 0, 0)
    with pytest.raises(ValueError, match="decided_in_rollouts = 1, and is shown the newest"):
        aware.act(0, message(1, range(2)), 0, 0, 0)


def test_earlier_observations_that_are_not_finite_count_too():
    made = plans_ahead(range(3), rollouts="delayed", on_nan="skip", warn=[].append)
    made.begin_rollout(2)
    made.begin_epoch()
    made.act(0, message(0, range(3)) | {BEGINS: torch.zeros(3, dtype=torch.bool)}, 0, 0, 0)
    shown = message(2, range(3)) | {EARLY: states(1, range(3))}
    shown[EARLY]["states"][1] = torch.nan
    shown["obs"]["states"][2] = torch.inf
    assert made.act(0, shown, 0, 1, 1).isfinite().all()
    record = made.finish(0, message(3, range(3)) | {EARLY: states(2, range(3))}, 2)
    assert record.finite.tolist() == [[True, False, False]] * 2


def test_episodes_go_on_with_their_own_plans_in_any_slot():
    made = plans_ahead(range(2))
    obs = states(0, range(2)), states(1, range(2))
    with made.evaluating():
        made.evaluate({"obs": obs[0], EPISODES: torch.tensor([4, 9])}, [0, 1], 0)
        later = made.evaluate({"obs": obs[1], EPISODES: torch.tensor([9, 3])}, [0, 1], 1)
    policy = made.policy
    plans = policy.predict_action_batch(obs[0], mode="eval")[1]["plan"]
    plan = torch.stack([plans[1], torch.full((5, 2), torch.nan)])
    expected = policy.predict_action_batch(obs[1], mode="eval", plan=plan)[0]
    torch.testing.assert_close(later, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(later[0, 0], plans[1, 2], rtol=0, atol=1e-6)
    with made.evaluating():
        anew = made.evaluate({"obs": obs[1], EPISODES: torch.tensor([9, 3])}, [0, 1], 0)
    plain = policy.predict_action_batch(obs[1], mode="eval")[0]
    torch.testing.assert_close(anew, plain, rtol=0, atol=1e-6)
