"""Small datasets whose every number is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlinf.data.lerobot.writer import DatasetWriter


def write_dataset(
    folder: Path,
    lengths=(4, 3),
    *,
    act=None,
    terminated=False,
    success=True,
    pictures=False,
    choices=False,
    seed=0,
    obs_dim=5,
    action_dim=2,
    tasks=("do it",),
) -> Path:
    """Write episodes of random states; `act` turns a state into an action, tasks take turns.

    Pictures are plain, or with `pictures="noise"` random.
    """
    rng = np.random.default_rng(seed)
    kind = "int64" if choices else "float32"
    features = {
        "observation.state": {"dtype": "float32", "shape": (obs_dim,)},
        "action": {"dtype": kind, "shape": (action_dim,)},
        "next.reward": {"dtype": "float32", "shape": (1,)},
        "next.success": {"dtype": "bool", "shape": (1,)},
        "next.terminated": {"dtype": "bool", "shape": (1,)},
        "next.truncated": {"dtype": "bool", "shape": (1,)},
    }
    if pictures:
        for name in ("main", "extra_view_0", "extra_view_1"):
            features[f"observation.images.{name}"] = {"dtype": "image", "shape": (8, 8, 3)}

    def observation(step):
        seen = {"observation.state": rng.normal(size=obs_dim).astype(np.float32)}
        if pictures:
            for number, name in enumerate(("main", "extra_view_0", "extra_view_1")):
                picture = np.full((8, 8, 3), 10 * step + number, np.uint8)
                if pictures == "noise":
                    picture = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                seen[f"observation.images.{name}"] = picture
        return seen

    act = act or (lambda state: np.tanh(state[:action_dim]))
    with DatasetWriter.create(folder, 10, features, final_observations=True) as writer:
        for number, length in enumerate(lengths):
            for step in range(length):
                seen, last = observation(step), step == length - 1
                solved = success if isinstance(success, bool) else success[number]
                writer.add_frame(
                    {
                        **seen,
                        "action": act(seen["observation.state"]),
                        "next.reward": float(step),
                        "next.success": bool(last and solved),
                        "next.terminated": last and terminated,
                        "next.truncated": last and not terminated,
                    },
                    task=tasks[number % len(tasks)],
                )
            writer.save_episode(observation(length))
    return folder
