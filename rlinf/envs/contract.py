"""The checks of `rlinf check-env`, one function for each promise of the contract."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import torch

from rlinf.envs.base import VectorEnv
from rlinf.envs.episodes import METRICS
from rlinf.envs.probe import Check, Probe, Violation

_SEED_FIX = "draw all randomness from a generator that reset(seed=...) seeds"


def can_be_made(probe: Probe) -> str:
    """The env can be made, says what it takes and gives, and can be closed twice."""
    with probe.env() as env:
        if env.num_envs != probe.num_envs:
            raise Violation(f"num_envs is {env.num_envs}, {probe.num_envs} were asked for")
        spec = env.action_spec
        if spec.low.shape != spec.high.shape or (spec.low > spec.high).any():
            raise Violation(f"bounds of actions are not bounds: {spec.low} to {spec.high}")
        probe.episode_limit = env.max_episode_steps
        probe.limit = min(probe.limit, env.max_episode_steps or probe.limit)
        keys = ", ".join(f"{key} {list(spec.shape)}" for key, spec in env.obs_spec.items())
        env.close()
        kind = f"{spec.dim} numbers"
        if spec.choices is not None:
            kind = " x ".join(map(str, spec.choices)) + " choices"
        limit = env.max_episode_steps or "no limit of"
        return f"observes {keys}; acts with {kind}; {limit} steps per episode"


def spaces_tell_the_truth(probe: Probe) -> str:
    """What a Gymnasium env returns lies in the space that it announces."""
    with probe.env(num_envs=1) as env:
        problems = getattr(env, "space_problems", None)
        if problems is None:
            return "no Gymnasium spaces to compare with"
        found = problems(probe.actions(env, 20)[0])
        if found:
            raise Violation(found, "make observation_space say what reset and step return")
        return "observations lie in observation_space"


def observations_have_the_form(probe: Probe) -> str:
    """Observations are dicts of CPU tensors with the announced shapes."""
    with probe.env() as env:
        _check_obs(env, env.reset()[0])
        obs = env.chunk_step(probe.actions(env, 2))[0]
        for one in obs[:-1]:
            _check_obs(env, one, last=False)
        _check_obs(env, obs[-1])
        pickle.dumps(obs)
    return "tensors of the announced shapes and types"


def steps_have_the_form(probe: Probe) -> str:
    """Rewards and flags have their shapes and types."""
    with probe.env() as env:
        env.reset()
        for chunk in (1, 3):
            obs, rewards, terminations, truncations, infos = env.chunk_step(
                probe.actions(env, chunk)
            )
            shape = (env.num_envs, chunk)
            for name, value, dtype in (
                ("rewards", rewards, torch.float32),
                ("terminations", terminations, torch.bool),
                ("truncations", truncations, torch.bool),
            ):
                _check_tensor(name, value, shape, dtype)
            if len(obs) != chunk or len(infos) != chunk:
                raise Violation(f"{len(obs)} observations and {len(infos)} infos for {chunk} steps")
            if (terminations & truncations).any():
                raise Violation("a step is both terminated and truncated")
            for info in infos:
                _check_tensor("infos['_valid']", info.get("_valid"), shape[:1], torch.bool)
            pickle.dumps(infos)
        result = env.step(probe.actions(env))
        _check_tensor("reward of step()", result[1], (env.num_envs,), torch.float32)
    return "float32 rewards, bool flags, one info per step"


def same_seed_same_episode(probe: Probe) -> str:
    """Two envs with the same seed do the same, and another one something else."""
    with probe.env() as one, probe.env() as two, probe.env(seed=8) as other:
        first = one.reset()[0]
        _equal(first, two.reset()[0], "after reset with the same seed", _SEED_FIX)
        for step in range(10):
            actions = probe.actions(one, 1, seed=step)
            a, b = one.chunk_step(actions), two.chunk_step(actions)
            when = f"in step {step + 1} with the same seed and actions"
            _equal(a[0][-1], b[0][-1], when, _SEED_FIX)
            if not torch.equal(a[1], b[1]):
                raise Violation(f"rewards differ {when}", _SEED_FIX)
        if _difference(first, other.reset()[0]) is None:
            return "? another seed begins in the same state: there is only one initial state"
    return "same seed, same episode; other seed, other episode"


def past_does_not_matter(probe: Probe) -> str:
    """How an episode begins does not depend on what was done in the one before."""
    with probe.env(auto_reset=False) as used, probe.env(auto_reset=False) as fresh:
        used.reset()
        for step in range(5):
            used.chunk_step(probe.actions(used, 1, seed=step))
        fresh.reset()
        fix = "set everything in reset: what is left over makes episodes differ"
        _equal(used.reset()[0], fresh.reset()[0], "in the second episode, by what was before", fix)
        actions = probe.actions(used, 1)
        a, b = used.chunk_step(actions), fresh.chunk_step(actions)
        _equal(a[0][-1], b[0][-1], "in the second episode, by what was before", fix)
    return "an episode does not depend on the one before"


def observations_can_be_kept(probe: Probe) -> str:
    """What was returned is not written to later."""
    with probe.env() as env:
        kept = [env.reset()[0], env.chunk_step(probe.actions(env, 1))[0][-1]]
        copies = [{key: _clone(value) for key, value in obs.items()} for obs in kept]
        for step in range(3):
            env.chunk_step(probe.actions(env, 1, seed=step))
        fix = "return new arrays from every step"
        for obs, copy in zip(kept, copies, strict=True):
            _equal(obs, copy, "after later steps: it was overwritten", fix)
    return "observations are not overwritten"


def chunks_are_steps(probe: Probe) -> str:
    """A chunk of actions does what its actions do one by one."""
    with probe.env(auto_reset=False) as one, probe.env(auto_reset=False) as two:
        one.reset(), two.reset()
        count = min(4, probe.limit)
        actions = probe.actions(one, count)
        chunk = one.chunk_step(actions)
        steps = [two.chunk_step(actions[:, [index]]) for index in range(count)]
        _equal(chunk[0][-1], steps[-1][0][-1], "between a chunk and its steps")
        for column, step in enumerate(steps):
            for index, name in ((1, "rewards"), (2, "terminations"), (3, "truncations")):
                if not torch.equal(chunk[index][:, column], step[index][:, 0]):
                    raise Violation(f"{name} of a chunk and of its steps differ in step {column}")
    return "a chunk does what its steps do"


def episodes_end_and_begin(probe: Probe) -> str:
    """The step limit truncates; the final observation is kept; the next episode begins."""
    limit = probe.limit
    with (
        probe.env(max_episode_steps=limit) as env,
        probe.env(max_episode_steps=limit, auto_reset=False) as twin,
    ):
        env.reset(), twin.reset()
        over = torch.zeros(env.num_envs, dtype=torch.bool)
        for step in range(1, limit + 1):
            actions = probe.actions(env, 1, seed=step)
            obs, _, terminations, truncations, infos = env.chunk_step(actions)
            end = twin.chunk_step(actions)[0][-1]
            done = (terminations | truncations)[:, 0]
            now = done & ~over
            if step < limit and (truncations[:, 0] & ~over).any():
                raise Violation(f"truncated in step {step}, the limit is {limit} steps")
            if now.any():
                _check_end(infos[-1], now, end, step)
            over |= done
        if not over.all():
            slots = torch.nonzero(~over).flatten().tolist()
            raise Violation(
                f"slots {slots} went on after max_episode_steps = {limit} steps",
                "report a truncation when the step limit is reached",
            )
        if now.all():
            begun = twin.reset()[0]
            fix = "with auto_reset return the first observation of the next episode"
            _equal(obs[-1], begun, "between auto-reset and reset", fix)
    return f"cut off after {limit} steps, final observation kept, next episode begun"


def metrics_add_up(probe: Probe) -> str:
    """The metrics of an episode are those of its steps."""
    limit = probe.limit
    with probe.env(max_episode_steps=limit) as env:
        env.reset()
        total = torch.zeros(env.num_envs)
        counted = 0
        for step in range(3 * limit):
            _, rewards, terminations, truncations, infos = env.chunk_step(
                probe.actions(env, 1, seed=step)
            )
            total += rewards[:, 0]
            done = (terminations | truncations)[:, 0]
            if not done.any():
                continue
            metrics, mask = infos[-1]["episode"], infos[-1]["_episode"]
            missing = [name for name in METRICS if name not in metrics]
            if missing:
                raise Violation(f"infos['episode'] lacks {', '.join(missing)}")
            if not torch.allclose(metrics["return"][mask], total[mask], rtol=1e-4, atol=1e-4):
                raise Violation("'return' is not the sum of the rewards of the episode")
            if (metrics["success_at_end"] > metrics["success_once"])[mask].any():
                raise Violation("'success_at_end' without 'success_once'")
            if (metrics["episode_len"][mask] > limit).any():
                raise Violation(f"'episode_len' is more than the limit of {limit} steps")
            counted += int(mask.sum())
            total[done] = 0
    return f"return, length and success of {counted} episodes add up"


def groups_share_a_state(probe: Probe) -> str:
    """Members of a group begin in the same state."""
    with probe.env(group_size=2) as env:
        obs, _ = env.reset()
        even = {key: value[0::2] for key, value in obs.items()}
        odd = {key: value[1::2] for key, value in obs.items()}
        _equal(even, odd, "within a group after reset", _SEED_FIX)
    return "members of a group begin in the same state"


def goes_on_from_a_saved_state(probe: Probe) -> str:
    """A saved state, loaded into another env, goes on exactly."""
    with probe.env() as one, probe.env() as two:
        one.reset()
        for step in range(3):
            one.chunk_step(probe.actions(one, 1, seed=step))
        state = one.get_state()
        if state["not_saved"]:
            return f"? {state['not_saved']}: a resumed run begins new episodes and is not exact"
        blob = pickle.dumps(state)
        lost = two.set_state(pickle.loads(blob))
        fix = "draw randomness from the seeded generator, or save and set it in the adapter"
        if lost:
            raise Violation(lost, fix)
        for step in range(8):
            actions = probe.actions(one, 1, seed=100 + step)
            a, b = one.chunk_step(actions), two.chunk_step(actions)
            _equal(a[0][-1], b[0][-1], f"{step + 1} steps after the saved state", fix)
    return f"goes on exactly ({len(blob) / probe.num_envs / 1024:.1f} KiB per slot)"


def random_agent(probe: Probe) -> str:
    """A random agent runs without trouble; says how fast."""
    with probe.env() as env:
        env.reset()
        chunk = probe.actions(env, probe.steps)
        episodes = successes = 0
        begin = time.perf_counter()
        for step in range(probe.steps):
            infos = env.chunk_step(chunk[:, [step]])[-1]
            if "episode" in infos[-1]:
                mask = infos[-1]["_episode"]
                episodes += int(mask.sum())
                successes += int(infos[-1]["episode"]["success_once"][mask].sum())
        rate = probe.steps * env.num_envs / (time.perf_counter() - begin)
        skipped = infos[-1]["nan_skipped"]
    if skipped:
        raise Violation(f"{skipped} episodes with a NaN were dropped")
    text = f"{rate:,.0f} steps/s in one process, {episodes} episodes, {successes} solved"
    if not episodes and probe.episode_limit is None:
        return f"? {text}; no episode ended and there is no step limit: set max_episode_steps"
    return text


def episodes_are_fixed(probe: Probe) -> str:
    """A numbered episode of an evaluation is the same in any slot and whatever was before it."""
    with probe.env() as one, probe.env() as two:
        if not one.chooses_starts:
            return "? it draws its initial states itself: it cannot be evaluated in"
        numbers = list(range(one.num_envs))
        two.reset()
        two.chunk_step(probe.actions(two, 2))
        obs, turned = one.begin_episodes(numbers)[0], two.begin_episodes(numbers[::-1])[0]
        fix = "set everything in reset, by the seed alone"
        for step in range(4):
            back = {key: _pick(value, numbers[::-1]) for key, value in turned.items()}
            _equal(obs, back, f"in another slot, in step {step} of an evaluation", fix)
            actions = probe.actions(one, 1, seed=step)
            obs = one.chunk_step(actions)[0][-1]
            turned = two.chunk_step(actions[::-1])[0][-1]
    return "an episode of an evaluation is the same in any slot"


CHECKS: dict[str, Check] = {
    "make": can_be_made,
    "spaces": spaces_tell_the_truth,
    "observations": observations_have_the_form,
    "steps": steps_have_the_form,
    "same seed": same_seed_same_episode,
    "past": past_does_not_matter,
    "kept observations": observations_can_be_kept,
    "chunks": chunks_are_steps,
    "episode ends": episodes_end_and_begin,
    "metrics": metrics_add_up,
    "groups": groups_share_a_state,
    "evaluation": episodes_are_fixed,
    "saved state": goes_on_from_a_saved_state,
    "random agent": random_agent,
}
"""All checks, in the order in which they make sense."""


def _check_end(infos: dict[str, Any], ended: torch.Tensor, end: dict, step: int) -> None:
    for key in ("final_observation", "_final_observation", "episode", "_episode"):
        if key not in infos:
            raise Violation(f"an episode ended in step {step} and infos lack '{key}'")
    if not torch.equal(infos["_final_observation"] & ended, ended):
        raise Violation(f"'_final_observation' misses slots that ended in step {step}")
    slots = torch.nonzero(ended).flatten().tolist()
    final = {key: _pick(value, slots) for key, value in infos["final_observation"].items()}
    end = {key: _pick(value, slots) for key, value in end.items()}
    _equal(final, end, "between final_observation and the last one without auto-reset")
    lengths = infos["episode"]["episode_len"][ended]
    if not (lengths == step).all():
        raise Violation(f"'episode_len' is {lengths.tolist()} after {step} steps")


def _check_obs(env: VectorEnv, obs: Any, last: bool = True) -> None:
    if not isinstance(obs, dict):
        raise Violation(f"an observation is a {type(obs).__name__}, not a dict")
    for key, spec in env.obs_spec.items():
        if key not in obs and not last and key in env.rendered_keys:
            continue
        dtype = torch.from_numpy(np.empty(0, spec.dtype)).dtype
        _check_tensor(f"observation '{key}'", obs.get(key), (env.num_envs, *spec.shape), dtype)
    words = obs.get("task_descriptions")
    if not isinstance(words, list) or len(words) != env.num_envs:
        raise Violation(f"task_descriptions is {words!r}, not a list of {env.num_envs} texts")


def _check_tensor(name: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        kind = value.device if isinstance(value, torch.Tensor) else type(value).__name__
        raise Violation(f"{name} is a {kind}, not a CPU tensor")
    if tuple(value.shape) != tuple(shape) or value.dtype != dtype:
        raise Violation(
            f"{name} is {value.dtype} {list(value.shape)}, expected {dtype} {list(shape)}"
        )
    if value.is_floating_point() and not torch.isfinite(value).all():
        raise Violation(f"{name} has NaN or infinite entries")


def _equal(one: dict[str, Any], other: dict[str, Any], when: str, fix: str = "") -> None:
    difference = _difference(one, other)
    if difference:
        raise Violation(f"{difference} {when}", fix)


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    for key, value in one.items():
        match = other.get(key)
        if not isinstance(value, torch.Tensor):
            if value != match:
                return f"'{key}' differs"
        elif not torch.equal(value, match):
            gap = (value.double() - match.double()).abs()
            slot = int(gap.reshape(len(gap), -1).amax(1).argmax())
            return f"'{key}' differs by up to {gap.max():.3g} (slot {slot})"
    return None


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else list(value)


def _pick(value: Any, slots: list[int]) -> Any:
    return value[slots] if isinstance(value, torch.Tensor) else [value[slot] for slot in slots]
