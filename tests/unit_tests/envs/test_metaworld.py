"""The MetaWorld adapter: exactness against MetaWorld itself, trials, goals, saved states."""

import pickle

import numpy as np
import pytest
import torch

metaworld = pytest.importorskip("metaworld")

from rlinf.config import ConfigError, build_config, validate_cfg  # noqa: E402
from rlinf.envs import get_env_cls  # noqa: E402
from rlinf.envs.metaworld.simulator import Simulator  # noqa: E402
from rlinf.envs.metaworld.tasks import DESCRIPTIONS, tasks_of  # noqa: E402

TASKS = list(metaworld.env_dict.ALL_V3_ENVIRONMENTS)
# Among them one that looks into MuJoCo's memory, one with two objects and one that rejects goals.
SOME_TASKS = ["button-press-v3", "basketball-v3", "stick-pull-v3", "door-lock-v3", "reach-v3"]


def make(num_envs=2, offset=0, processes=1, **cfg):
    return get_env_cls("metaworld")(cfg, num_envs, offset, processes)


def stock(task, goal):
    """Returns MetaWorld's own env with a goal, as `set_task` of an MT benchmark leaves it."""
    env = metaworld.env_dict.ALL_V3_ENVIRONMENTS[task]()
    content = {"rand_vec": goal, "env_cls": type(env), "partially_observable": False}
    env.set_task(metaworld.Task(env_name=task, data=pickle.dumps(content)))
    return env


def roll(step, actions):
    rows = []
    for action in actions:
        obs, reward, _, _, info = step(action)
        rows.append(np.concatenate([obs, [reward, float(info["success"])]]))
    return np.array(rows)


def check_task(task, steps):
    """Holds resets, steps and saved states against MetaWorld's own, bit for bit."""
    actions = np.random.default_rng(1).uniform(-1, 1, (steps, 4)).astype(np.float32)
    half = steps // 2
    one, two = Simulator(task), Simulator(task)
    goals = one.trial_goals(3)
    own = stock(task, goals[1])
    first, _ = own.reset()
    expected = roll(own.step, actions)
    one.reset(goals[0])
    roll(one.step, actions[:7])
    assert np.array_equal(one.reset(goals[1]), first)
    begin = one.snapshot()
    assert np.array_equal(roll(one.step, actions[:half]), expected[:half])
    middle = pickle.loads(pickle.dumps(one.snapshot()))
    assert np.array_equal(roll(one.step, actions[half:]), expected[half:])
    two.reset(goals[2])
    two.restore(middle)
    assert np.array_equal(roll(two.step, actions[half:]), expected[half:])
    two.restore(begin)
    assert np.array_equal(roll(two.step, actions), expected)
    drawn = one.random_goal(np.random.default_rng(5))
    assert np.array_equal(drawn, Simulator(task).random_goal(np.random.default_rng(5)))
    assert not np.array_equal(drawn, one.random_goal(np.random.default_rng(6)))


@pytest.mark.parametrize("task", SOME_TASKS)
def test_results_are_those_of_metaworld(task):
    check_task(task, 30)


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(set(TASKS) - set(SOME_TASKS)))
def test_results_are_those_of_metaworld_in_every_task(task):
    check_task(task, 30)


def test_trials_are_those_of_the_benchmark():
    tasks = metaworld.MT1("reach-v3", seed=11).train_tasks
    expected = [pickle.loads(task.data)["rand_vec"] for task in tasks]
    before = np.random.get_state()[1].copy()
    assert np.array_equal(Simulator("reach-v3").trial_goals(11), expected)
    assert np.array_equal(np.random.get_state()[1], before)


def test_a_vector_env_steps_what_metaworld_steps():
    env = make(2, task="drawer-open-v3", specific_reset_id=4, goal_seed=3)
    obs, _ = env.reset()
    own = stock("drawer-open-v3", Simulator("drawer-open-v3").trial_goals(3)[4])
    first, _ = own.reset()
    assert torch.equal(obs["states"][0], torch.from_numpy(first.astype(np.float32)))
    actions = np.random.default_rng(0).uniform(-1, 1, (2, 20, 4)).astype(np.float32)
    obs, rewards, *_ = env.chunk_step(actions)
    expected = roll(own.step, actions[0])
    assert np.array_equal(obs[-1]["states"][0].numpy(), expected[-1, :39].astype(np.float32))
    assert np.array_equal(rewards[0].numpy(), expected[:, 39].astype(np.float32))


@pytest.mark.parametrize("cached", [True, False])
def test_cached_resets_change_nothing(cached):
    env = make(2, specific_reset_id=3, max_episode_steps=5, cache_resets=cached)
    fresh = make(2, specific_reset_id=3, max_episode_steps=5, cache_resets=False)
    env.reset(), fresh.reset()
    rng = np.random.default_rng(0)
    for _ in range(3):
        actions = rng.uniform(-1, 1, (2, 5, 4)).astype(np.float32)
        a, b = env.chunk_step(actions), fresh.chunk_step(actions)
        assert torch.equal(a[1], b[1])
        assert torch.equal(a[0][-1]["states"], b[0][-1]["states"])
    assert bool(env._cache) == cached


def test_mt10_has_ten_tasks_with_words_and_a_one_hot():
    env = make(6, task="MT10", seed=2, max_episode_steps=3)
    assert len(env.tasks) == 10
    assert env.num_reset_states == 500
    obs, infos = env.reset()
    ids = infos["reset_state_ids"]
    assert obs["states"].shape == (6, 49)
    assert torch.equal(obs["states"][:, 39:].argmax(1), ids // 50)
    assert obs["task_descriptions"] == [DESCRIPTIONS[env.tasks[index // 50]] for index in ids]
    for _ in range(10):
        obs = env.chunk_step(np.zeros((6, 3, 4), np.float32))[0][-1]
        assert obs["states"][:, 39:].sum(1).tolist() == [1] * 6
        # Simulators that no slot plays wait, but not more of them than there are slots.
        assert len(env._waiting) <= 6
    assert env._waiting
    assert make(2, task="MT10", task_one_hot=False).obs_spec["states"].shape == (39,)
    two = make(6, task="MT10", seed=2, max_episode_steps=3)
    two.set_state(pickle.loads(pickle.dumps(env.get_state())))
    actions = np.ones((6, 3, 4), np.float32)
    a, b = env.chunk_step(actions), two.chunk_step(actions)
    assert torch.equal(a[0][-1]["states"], b[0][-1]["states"])
    assert a[0][-1]["task_descriptions"] == b[0][-1]["task_descriptions"]


def test_the_goal_and_further_entries_of_the_state_can_be_hidden():
    cfg = {"task": "reach-v3", "seed": 2, "max_episode_steps": 3}
    whole, blind = make(2, **cfg), make(2, **cfg, hide_goal=True)
    hand = make(2, **cfg, state_entries=[0, 1, 2, 3])
    seen = [[env.reset()[0]["states"]] for env in (whole, blind, hand)]
    # The last step begins new episodes.
    for _ in range(4):
        for env, states in zip((whole, blind, hand), seen, strict=True):
            states.append(env.step(np.ones((2, 4), np.float32))[0]["states"])
    for full, without, few in zip(*seen, strict=True):
        assert (full[:, 36:] != 0).any()
        assert (without[:, 36:] == 0).all() and torch.equal(without[:, :36], full[:, :36])
        assert torch.equal(few, full[:, :4])
    shown = blind.expert_obs(blind.last_obs)["states"]
    now = whole.last_obs["states"]
    assert torch.equal(shown[:, :18], now[:, :18]) and torch.equal(shown[:, 36:], now[:, 36:])


def test_a_policy_may_have_actions_of_its_own():
    cfg = {"task": "reach-v3", "seed": 2, "max_episode_steps": 20}
    gripper = {"index": 3, "opened": 1, "closed": 0, "binary": True}
    convention = {"layout": [0, 1, 2, 6], "gripper": gripper, "dim": 7}
    plain, other = make(2, **cfg), make(2, **cfg, action_convention=convention)
    assert other.policy_spec.dim == 7 and other.action_spec.dim == 4
    plain.reset(), other.reset()
    rng = np.random.default_rng(0)
    for _ in range(3):
        actions = rng.uniform(-1, 1, (2, 2, 4)).astype(np.float32)
        actions[..., 3] = np.sign(actions[..., 3])
        seven = rng.uniform(-1, 1, (2, 2, 7)).astype(np.float32)
        seven[..., :3], seven[..., 6] = actions[..., :3], actions[..., 3] < 0
        one, two = plain.chunk_step(actions), other.chunk_step(seven)
        assert torch.equal(one[0][-1]["states"], two[0][-1]["states"])
    with pytest.raises(ValueError, match=r"with 2 envs and 7 entries"):
        other.chunk_step(actions)


def test_instructions_can_be_swapped_and_success_is_that_of_the_task():
    cfg = {"tasks": ["faucet-open-v3", "faucet-close-v3"], "seed": 2, "max_episode_steps": 3}
    own, swapped = make(4, **cfg), make(4, **cfg, swap_instructions=True)
    told, other = (env.begin_episodes(range(4))[0] for env in (own, swapped))
    assert torch.equal(told["states"], other["states"])
    words = [DESCRIPTIONS[name] for name in cfg["tasks"]]
    assert told["task_descriptions"] == [*words, *words]
    assert other["task_descriptions"] == [*words[::-1], *words[::-1]]
    assert [episode.task for episode in swapped.playing] == [*cfg["tasks"], *cfg["tasks"]]


def test_slots_play_the_tasks_of_a_list_and_groups_share_task_and_start():
    names = ["reach-v3", "button-press-v3", "drawer-open-v3"]
    cfg = {"tasks": names, "max_episode_steps": 2, "seed": 3, "group_size": 2}
    trials, goals = (make(12, **cfg, goals=goals) for goals in ("trials", "random"))
    assert trials.task_names == names and trials.num_reset_states == 150
    for env in (trials, goals):
        obs, _ = env.reset()
        for _ in range(3):
            states = obs["states"]
            # Of six groups each task has two, and the members of a group begin alike.
            assert states[:, 39:].sum(0).tolist() == [4, 4, 4]
            assert torch.equal(states[0::2], states[1::2])
            assert len(states.unique(dim=0)) == 6
            words = [DESCRIPTIONS[names[task]] for task in states[:, 39:].argmax(1)]
            assert obs["task_descriptions"] == words
            obs_list, *_, infos = env.chunk_step(np.zeros((12, 2, 4), np.float32))
            assert torch.equal(infos[-1]["episode_tasks"], states[:, 39:].argmax(1))
            obs = obs_list[-1]
        assert not env._waiting, "slots keep their task where shares are whole"
    # An evaluation has as many episodes of each task, all of them with starts of their own.
    obs, _ = trials.begin_episodes(range(12))
    assert obs["states"][:, 39:].sum(0).tolist() == [4, 4, 4]
    assert len({(e.task, e.start) for e in trials.playing}) == 6, "two of a group begin alike"
    with pytest.raises(ValueError, match="reach-v3 is named more than once"):
        make(2, tasks=["MT10", "reach-v3"])


@pytest.mark.parametrize(
    "cfg", [{"tasks": SOME_TASKS[:2]}, {"goals": "random"}, {"specific_reset_id": 3}]
)
def test_all_of_the_state_after_resuming_is_that_of_the_uninterrupted_env(cfg, as_saved):
    """Also what only a step or an earlier episode has made: resets come from a cache or not."""
    one, two = (make(4, seed=2, max_episode_steps=3, **cfg) for _ in range(2))
    rng = np.random.default_rng(0)
    one.reset()
    for _ in range(6):
        one.chunk_step(rng.uniform(-1, 1, (4, 2, 4)))
    two.set_state(pickle.loads(pickle.dumps(one.get_state())))
    for step in range(6):
        assert as_saved(one) == as_saved(two), f"after {step} more chunks"
        actions = rng.uniform(-1, 1, (4, 2, 4))
        one.chunk_step(actions), two.chunk_step(actions)


def test_goals_are_trials_or_random_and_groups_share_them():
    trials = make(4, group_size=2, use_fixed_reset_state_ids=True)
    obs, infos = trials.reset()
    assert (infos["reset_state_ids"] < 50).all()
    assert torch.equal(obs["states"][0::2], obs["states"][1::2])
    fresh = make(4, group_size=2, goals="random", max_episode_steps=2)
    seen = [fresh.reset()[0]["states"]]
    seen.append(fresh.chunk_step(np.zeros((4, 2, 4)))[0][-1]["states"])
    assert fresh.num_reset_states is None
    for states in seen:
        assert torch.equal(states[0::2], states[1::2])
        assert not torch.equal(states[0], states[2])
    assert not torch.equal(seen[0], seen[1])
    listed = make(4, goals="random", num_reset_states=4, use_ordered_reset_state_ids=True)
    assert listed.reset()[1]["reset_state_ids"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("goals", ["trials", "random"])
def test_evaluations_have_goals_of_their_own(goals):
    env = make(6, seed=0, goals=goals, max_episode_steps=1)
    nothing = np.zeros((6, 1, 4), np.float32)
    trained = [env.reset()[0]["states"]]
    trained += [env.chunk_step(nothing)[0][-1]["states"] for _ in range(9)]
    evaluated = [env.begin_episodes(range(60))[0]["states"]]
    evaluated += [env.chunk_step(nothing)[0][-1]["states"] for _ in range(9)]
    both = (torch.cat(rows).tolist() for rows in (trained, evaluated))
    seen, asked = ({tuple(row) for row in rows} for rows in both)
    assert len(asked) == {"trials": 50, "random": 60}[goals]
    assert not seen & asked
    assert env.start_list(True) is None or env.start_list(True) != env.start_list(False)
    same = make(1, goal_seed=3)
    assert same.start_list(True) == same.start_list(False)


def test_the_limit_may_be_longer_than_that_of_metaworld():
    env = make(1, max_episode_steps=510)
    assert make(1).max_episode_steps == 500
    env.reset()
    *_, truncations, _ = env.chunk_step(np.zeros((1, 509, 4), np.float32))
    assert not truncations.any()
    assert env.chunk_step(np.zeros((1, 1, 4), np.float32))[3].all()


def test_a_scripted_expert_succeeds_and_success_can_end_the_episode():
    from metaworld.policies import SawyerButtonPressV3Policy

    expert = SawyerButtonPressV3Policy()
    env = make(2, reward="success", terminate_on_success=True, max_episode_steps=150, seed=1)
    obs, _ = env.reset()
    for _ in range(150):
        rows = [expert.get_action(row.double().numpy()) for row in obs["states"]]
        obs, reward, terminations, _, infos = env.step(np.clip(rows, -1, 1).astype(np.float32))
        if terminations.any():
            break
    assert reward[terminations].tolist() == [1] * int(terminations.sum())
    assert infos["episode"]["success_once"][terminations].all()
    assert infos["episode"]["return"][terminations].tolist() == [1] * int(terminations.sum())


def test_physics_that_diverge_are_not_passed_over(monkeypatch, tmp_path):
    # MuJoCo writes a log where it runs.
    monkeypatch.chdir(tmp_path)
    env = make(1, max_episode_steps=3, on_nan="skip")
    env.reset()
    env._sims[0].env.data.qvel[:] = 1e12
    env.chunk_step(np.zeros((1, 1, 4), np.float32))
    resumed = make(1, max_episode_steps=3, on_nan="skip")
    resumed.set_state(env.get_state())
    *_, infos = resumed.chunk_step(np.zeros((1, 2, 4), np.float32))
    assert infos[-1]["nan_skipped"] == 1, "that it diverged is not forgotten"
    *_, infos = env.chunk_step(np.zeros((1, 2, 4), np.float32))
    assert infos[-1]["nan_skipped"] == 1
    assert not infos[-1]["_episode"].any()
    *_, infos = env.chunk_step(np.zeros((1, 3, 4), np.float32))
    assert infos[-1]["nan_skipped"] == 1
    assert infos[-1]["_episode"].all()


def test_every_task_has_words_and_unknown_ones_list_near_ones():
    assert set(DESCRIPTIONS) == set(TASKS)
    assert len(set(DESCRIPTIONS.values())) == 50
    assert len(tasks_of("mt50")) == 50
    with pytest.raises(ValueError, match="no task 'buton-press-v3'; near ones: button-press-v3"):
        make(task="buton-press-v3")
    with pytest.raises(ValueError, match="near ones: button-press-v3"):
        make(task="button-press-v2")
    with pytest.raises(ValueError, match="door-open-v3"):
        make(task="door")
    with pytest.raises(ValueError, match="known: assembly-v3"):
        make(task="xyzzy")


def test_a_task_that_does_not_exist_is_told_before_anything_starts():
    cfg = build_config("metaworld_ppo_mlp", overrides=["env.train.task=buton-press-v3"])
    with pytest.raises(ConfigError) as caught:
        validate_cfg(cfg)
    assert "env.train.task" in [problem.path for problem in caught.value.problems]
    assert "near ones: button-press-v3" in str(caught.value)
    for tasks, said in (
        ("[reach-v3,buton-press-v3]", "near ones: button-press-v3"),
        ("[reach-v3,reach-v3]", "reach-v3 is named more than once"),
        ("[]", "tasks"),
    ):
        with pytest.raises(ConfigError, match=said):
            validate_cfg(build_config("metaworld_ppo_mlp", [f"env.train.tasks={tasks}"]))
    cfg = validate_cfg(build_config("metaworld_ppo_mlp", ["env.train.tasks=[reach-v3,push-v3]"]))
    assert cfg.env.eval.tasks == ["reach-v3", "push-v3"]
    for name in ("reach-v3", "MT10", "mt50"):
        cfg = build_config("metaworld_ppo_mlp", overrides=[f"env.train.task={name}"])
        assert validate_cfg(cfg).env.train.task == name
