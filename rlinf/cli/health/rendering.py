"""Can MuJoCo draw pictures without a screen, and with which back-end?"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

from rlinf.cli.health.finding import Finding
from rlinf.cli.health.packages import installed_version

LIBRARIES = {
    "egl": ("libEGL.so.1", "libEGL.so"),
    "osmesa": ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so"),
}
"""Shared libraries of each back-end, in the order to try; EGL goes first, it can use a GPU."""

DEBIAN_PACKAGES = {"egl": "libegl1 libgl1-mesa-dri", "osmesa": "libosmesa6"}
"""What `apt-get install` needs for each back-end."""

_DRAW = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    '<mujoco><worldbody><light pos="0 0 3"/><geom size=".5" rgba="1 0 0 1"/></worldbody></mujoco>'
)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 32, 32)
renderer.update_scene(data)
picture = renderer.render()
renderer.close()
print("drawn" if picture.any() else "black")
"""


def loads(backend: str, load: Callable[[str], object] = ctypes.CDLL) -> bool:
    """Tell whether a library of a back-end can be loaded."""
    for library in LIBRARIES[backend]:
        try:
            load(library)
        except OSError:
            continue
        return True
    return False


def draws(backend: str, timeout: float = 60.0) -> bool:
    """Draw one small picture with a back-end, in a process of its own since drivers may crash."""
    environ = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DRAW],
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and "drawn" in done.stdout


def check_rendering(
    environ: Mapping[str, str] = os.environ,
    loads: Callable[[str], bool] = loads,
    draws: Callable[[str], bool] = draws,
    has_mujoco: bool | None = None,
) -> list[Finding]:
    """Find a back-end that draws, and say how to choose it.

    Args:
        environ: Environment variables.
        loads: Tells whether the library of a back-end loads.
        draws: Tells whether a back-end really draws; asked only if MuJoCo is installed.
        has_mujoco: Whether MuJoCo is installed; looked up by default.

    Returns:
        One finding per back-end, and one about the choice.
    """
    if has_mujoco is None:
        has_mujoco = installed_version("mujoco") is not None
    findings, working = [], []
    for backend in LIBRARIES:
        name, fix = f"rendering {backend}", f"apt-get install {DEBIAN_PACKAGES[backend]}"
        if not loads(backend):
            findings.append(Finding(name, "ok", f"not here; to have it: {fix}"))
        elif has_mujoco and not draws(backend):
            findings.append(Finding(name, "warn", "its library loads, but nothing is drawn", fix))
        else:
            working.append(backend)
            findings.append(Finding(name, "ok", "draws" if has_mujoco else "its library loads"))
    return [*findings, _choice(environ.get("MUJOCO_GL", "").lower(), working, environ)]


def _choice(chosen: str, working: list[str], environ: Mapping[str, str]) -> Finding:
    name = "rendering"
    if not working and not environ.get("DISPLAY"):
        return Finding(
            name,
            "warn",
            "no back-end works: training on states is fine, pictures and videos are not",
            f"apt-get install {DEBIAN_PACKAGES['osmesa']} && export MUJOCO_GL=osmesa; "
            f"with a GPU: apt-get install {DEBIAN_PACKAGES['egl']} && export MUJOCO_GL=egl",
        )
    if chosen in LIBRARIES and chosen not in working:
        fix = f"export MUJOCO_GL={working[0]}" if working else "unset MUJOCO_GL"
        return Finding(name, "fail", f"MUJOCO_GL={chosen} does not work here", fix)
    if not chosen and working and not environ.get("DISPLAY"):
        return Finding(
            name,
            "warn",
            "MUJOCO_GL is not set and there is no screen",
            f"export MUJOCO_GL={working[0]}",
        )
    return Finding(name, "ok", f"MUJOCO_GL={chosen}" if chosen else "uses the screen")
