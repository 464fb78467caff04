"""Observations for which memory is reserved are the same, and lie one after the other in it."""

import numpy as np
import pytest
import torch

from rlinf.envs.obs_rows import ObsArrays
from rlinf.envs.step_result import ObsSpec
from tests.unit_tests.envs.conftest import WalkEnv


class PictureEnv(WalkEnv):
    """Draws how far each slot has come."""

    rendered_keys = frozenset({"main_images"})

    @property
    def obs_spec(self):
        return {"states": ObsSpec((3,)), "main_images": ObsSpec((4, 5, 3), np.uint8)}

    def _write(self, obs, slot, content):
        obs["states"][slot] = content

    def _draw_images(self, slots, images):
        for slot in slots:
            begin, _, steps = self.places[slot] or (0, 0, 0)
            images["main_images"][slot] = begin + 10 * steps


def play(env, chunk, reserved):
    """Return copies of what 8 chunks led to, as it was then, and what was returned."""
    then, now = [], []

    def keep(obs, infos):
        now.append(obs)
        then.append({key: obs[key].clone() for key in ("states", "main_images")})
        for key in ("states", "main_images"):
            final = infos.get("final_observation", {key: torch.zeros(0)})
            then[-1][f"final {key}"] = final[key].clone()

    if reserved:
        env.reserve(8 * chunk + 1)
    keep(*env.reset())
    for number in range(8):
        amount = np.full((3, chunk, 2), 0.1 * number, np.float32)
        obs, _, _, _, infos = env.chunk_step(amount)
        keep(obs[-1], infos[-1])
    return then, now


def make():
    # Episodes end in the middle of it, some of them earlier, and one of them in a failure.
    cfg = {"seed": 1, "max_episode_steps": 5, "auto_reset": True, "max_restarts": 1}
    return PictureEnv(cfg | {"terminates": True, "fail_at": (1, 2), "states": 20}, 3)


@pytest.mark.parametrize("chunk", [1, 2])
def test_reserved_memory_changes_nothing(chunk):
    plain, now = play(make(), chunk, reserved=False)
    rows, kept = play(make(), chunk, reserved=True)
    assert any(len(step["final states"]) for step in plain[:-1])
    for then, same, plain_now, row_now in zip(plain, rows, now, kept, strict=True):
        for key, value in then.items():
            assert torch.equal(value, same[key]), key
        for key in ("states", "main_images"):
            assert torch.equal(plain_now[key], then[key]), "nobody writes into it later"
            assert torch.equal(row_now[key], then[key]), "nobody writes into it later"


@pytest.mark.parametrize("chunk", [1, 2])
def test_what_a_rollout_observes_lies_time_first(chunk):
    env = make()
    _, kept = play(env, chunk, reserved=True)
    for key, apart in (("states", chunk), ("main_images", 1)):
        size = kept[0][key].nbytes
        first = kept[0][key].data_ptr()
        places = [step[key].data_ptr() - first for step in kept]
        assert places == [number * apart * size for number in range(9)]
    states = [step["states"].clone() for step in kept]
    # Without a reset, the present observation is the first; what was kept is not touched.
    env.reserve(1)
    begin = env.last_obs["states"]
    assert torch.equal(begin, states[-1])
    obs = env.chunk_step(np.ones((3, chunk, 2), np.float32))[0][0]["states"]
    assert obs.data_ptr() - begin.data_ptr() == begin.nbytes
    env.chunk_step(np.ones((3, chunk, 2), np.float32))
    assert all(torch.equal(a["states"], b) for a, b in zip(kept, states, strict=True))


def test_what_is_assigned_is_written_into_the_tensor():
    arrays = ObsArrays.of({"states": np.zeros((2, 3), np.float32)})
    arrays["states"] = np.ones((2, 3))
    assert arrays.tensors["states"].eq(1).all() and arrays["states"].dtype == np.float32


@pytest.mark.parametrize("early", [0, 1, 2])
def test_pictures_are_drawn_where_a_policy_looks_before_the_end_of_a_chunk(early):
    env = make()
    env.early = early
    env.reset()
    obs = env.chunk_step(np.zeros((3, 4, 2), np.float32))[0]
    drawn = [column for column, seen in enumerate(obs) if "main_images" in seen]
    assert drawn == sorted({3 - early, 3})
    for column in drawn:
        own = obs[column]["main_images"][0]
        begin, _, steps = obs[column]["states"][0].tolist()
        assert (own == int(begin + 10 * steps)).all() and steps == column + 1
