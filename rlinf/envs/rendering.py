"""Pictures without a screen: which OpenGL back-end works, and cameras that slots share."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np

from rlinf.envs.coarse_meshes import coarse_meshes
from rlinf.envs.errors import EnvError

BACKENDS = {
    "egl": ("libEGL.so.1", "libEGL.so"),
    "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so"),
}
"""Back-ends of MuJoCo without a screen, best first, and their libraries."""

_DRAW = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    '<mujoco><worldbody><light pos="0 0 3"/><geom size=".5"/></worldbody></mujoco>'
)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 16, 16) as renderer:
    renderer.update_scene(data)
    print("drawn" if renderer.render().any() else "black")
"""

_HELP = (
    "apt-get install libegl1 libgl1-mesa-dri (or libosmesa6), then export MUJOCO_GL=egl (or osmesa)"
)


@cache
def _draws(backend: str) -> bool:
    # In a process of its own: drivers may crash, and MuJoCo picks its back-end at import.
    environ = dict(os.environ)
    if backend:
        environ.update(MUJOCO_GL=backend, PYOPENGL_PLATFORM=backend)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DRAW],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return "drawn" in done.stdout


def _loads(backend: str) -> bool:
    for library in BACKENDS[backend]:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False


def can_render() -> tuple[bool, str]:
    """Tell whether MuJoCo can draw pictures here.

    Draws one in a process of its own, once; takes about a second.

    Returns:
        Whether it can, and with which back-end or why not.
    """
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen in ("disable", "disabled", "off", "false", "0"):
        return False, f"MUJOCO_GL={chosen} turns rendering off"
    if chosen or os.environ.get("DISPLAY"):
        name = f"MUJOCO_GL={chosen}" if chosen else "the screen"
        if _draws(chosen):
            return True, f"draws with {name}"
        return False, f"nothing is drawn with {name}; {_HELP}"
    for backend in BACKENDS:
        if _loads(backend) and _draws(backend):
            return True, f"draws with MUJOCO_GL={backend}"
    return False, f"no back-end draws without a screen; {_HELP}"


def choose_backend() -> None:
    """Set MUJOCO_GL to a back-end that draws, if nobody chose one and there is no screen.

    Has to be called before MuJoCo is imported.

    Raises:
        EnvError: No back-end draws, or the chosen one has no library here; the message says
            what to install.
    """
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen in BACKENDS and not _loads(chosen):
        # MuJoCo would fail on its import, with an error that names neither.
        raise EnvError(
            f"MUJOCO_GL={chosen} needs {BACKENDS[chosen][0]}, which is not installed here; {_HELP}"
        )
    if chosen or os.environ.get("DISPLAY"):
        return
    if "mujoco" in sys.modules:
        raise EnvError(
            "mujoco was imported before a back-end for pictures was chosen: export MUJOCO_GL=egl "
            "(or osmesa) before the program starts"
        )
    able, reason = can_render()
    if not able:
        raise EnvError(f"pictures were asked for, but {reason}")
    os.environ["MUJOCO_GL"] = reason.rpartition("=")[2]


class Cameras:
    """Draws MuJoCo scenes that share a model, with one OpenGL context for all of them.

    Args:
        model: A model; every scene drawn has an equal one.
        height: Of the pictures.
        width: Of the pictures.
        fast: Leave out shadows, reflections, smoothing, and faces of large meshes that are smaller
            than about a pixel: they take most of the time when there is no GPU.
    """

    def __init__(self, model: Any, height: int, width: int, fast: bool) -> None:
        import mujoco

        self._names = [model.camera(index).name for index in range(model.ncam)]
        self._fast = fast
        self._off = (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION)
        quality, size = model.vis.quality.offsamples, model.vis.global_
        if fast:
            model.vis.quality.offsamples = 0
        size.offheight, size.offwidth = max(size.offheight, height), max(size.offwidth, width)
        # About half a pixel where all of the scene is in the picture.
        cell = model.stat.extent / max(height, width) / 2
        try:
            with coarse_meshes(model, cell) if fast else nullcontext():
                self._renderer = mujoco.Renderer(model, height, width)
        except Exception as error:
            raise EnvError(f"pictures cannot be drawn here: {error}; {_HELP}") from error
        finally:
            model.vis.quality.offsamples = quality

    def draw(self, data: Any, name: str, turned: bool = False) -> np.ndarray:
        """Draw the scene of `data`, uint8 `[height, width, 3]`.

        Args:
            data: State of the simulation.
            name: Camera of the model.
            turned: The camera hangs upside down: turn the picture.

        Raises:
            ValueError: There is no such camera.
        """
        if name not in self._names:
            raise ValueError(f"there is no camera '{name}'; cameras: {', '.join(self._names)}")
        self._renderer.update_scene(data, camera=name)
        if self._fast:
            for flag in self._off:
                self._renderer.scene.flags[flag] = 0
        picture = self._renderer.render()
        return picture[::-1, ::-1] if turned else picture

    def close(self) -> None:
        """Free the context."""
        self._renderer.close()
