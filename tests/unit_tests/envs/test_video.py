"""Videos of slots, and whether pictures can be drawn at all."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlinf.envs import EnvError, can_render, rendering
from rlinf.envs.video import VideoRecorder, caption, tile

pytest.importorskip("imageio_ffmpeg")

ROOT = Path(__file__).parents[3]


def test_pictures_are_laid_out_on_a_grid():
    pictures = np.stack([np.full((4, 7, 3), index + 1, np.uint8) for index in range(3)])
    sheet = tile(pictures)
    assert sheet.shape == (12, 18, 3)
    assert sheet[0, 0, 0] == 1
    assert sheet[0, 9, 0] == 2
    assert sheet[6, 0, 0] == 3
    assert sheet[6, 9].sum() == 0


def test_captions_show_success():
    picture = np.zeros((8, 60, 3), np.uint8)
    plain, solved = caption(picture, "1: step 4", False), caption(picture, "1: step 4", True)
    assert plain.shape == (24, 60, 3)
    assert plain[-1, -1].tolist() != solved[-1, -1].tolist()
    assert (plain[8:] > 200).any()


def test_a_video_has_the_frames_of_the_chosen_slots(walk, push, tmp_path):
    import imageio

    env = walk(3, max_episode_steps=4)
    env.reset()
    path = tmp_path / "deep" / "walk.mp4"
    with VideoRecorder(env, path, slots=[0, 2], fps=10) as video:
        video.capture()
        for _ in range(5):
            video.capture(env.chunk_step(push(3))[-1][-1])
    assert video.frames == 6
    frames = imageio.mimread(path)
    assert len(frames) == 6
    assert frames[0].shape[:2] == (30, 24)
    assert VideoRecorder(env, tmp_path / "none.mp4").close() is None
    assert not (tmp_path / "none.mp4").exists()


def test_an_env_without_pictures_says_so(walk, tmp_path, monkeypatch):
    env = walk(1)
    monkeypatch.delattr(type(env), "render_slot")
    env.reset()
    with pytest.raises(EnvError, match="walk has no pictures"):
        VideoRecorder(env, tmp_path / "a.mp4").capture()


def test_why_nothing_can_be_drawn(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    assert can_render() == (False, "MUJOCO_GL=disable turns rendering off")
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr(rendering, "_draws", lambda backend: backend == "osmesa")
    monkeypatch.setattr(rendering, "_loads", lambda backend: True)
    assert can_render() == (True, "draws with MUJOCO_GL=osmesa")
    monkeypatch.setattr(rendering, "_loads", lambda backend: False)
    able, reason = can_render()
    assert not able and "apt-get install libegl1" in reason
    monkeypatch.setenv("MUJOCO_GL", "egl")
    able, reason = can_render()
    assert not able and reason.startswith("nothing is drawn with MUJOCO_GL=egl")


def test_mujoco_imported_too_early_is_explained(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setitem(sys.modules, "mujoco", object())
    with pytest.raises(RuntimeError, match="export MUJOCO_GL=egl"):
        rendering.choose_backend()
    monkeypatch.setattr(rendering, "_loads", lambda backend: True)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    rendering.choose_backend()


def test_a_chosen_back_end_without_its_library_is_explained(monkeypatch):
    monkeypatch.setattr(rendering, "_loads", lambda backend: False)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(RuntimeError, match=r"MUJOCO_GL=osmesa needs libOSMesa.so.8.*apt-get"):
        rendering.choose_backend()


def test_metaworld_draws_what_the_policy_sees(tmp_path):
    pytest.importorskip("metaworld")
    if not can_render()[0]:
        pytest.skip("nothing can be drawn here")
    program = f"""
import numpy as np
from rlinf.envs import get_env_cls
from rlinf.envs.video import VideoRecorder
env = get_env_cls("metaworld")({{"obs_mode": "state_image", "image_size": 32,
                                 "max_episode_steps": 3, "video_cfg": {{"save_video": True}}}}, 2)
first, _ = env.reset()
obs, *_, infos = env.chunk_step(np.ones((2, 2, 4), np.float32))
assert "main_images" not in obs[0]
assert obs[1]["main_images"].shape == (2, 32, 32, 3)
assert first["main_images"].float().std() > 5
assert (first["main_images"] != obs[1]["main_images"]).any()
obs, *_, infos = env.chunk_step(np.ones((2, 2, 4), np.float32))
assert (infos[-1]["final_observation"]["main_images"] != obs[1]["main_images"]).any()
saved = env.get_state()
with VideoRecorder(env, {str(tmp_path / "v.mp4")!r}) as video:
    video.capture(infos[-1])
env.offload()
env.onload()
env.set_state(saved)
assert (env.last_obs["main_images"] == obs[1]["main_images"]).all()
env.close()
blind = get_env_cls("metaworld")({{"obs_mode": "image", "image_size": 32, "blank_images": True}}, 1)
assert (blind.reset()[0]["main_images"] == 0).all()
blind.close()
"""
    environ = {**os.environ, "LP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environ, check=True, timeout=100)
    assert (tmp_path / "v.mp4").stat().st_size > 500
