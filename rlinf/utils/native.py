"""Compiles C for the processor at hand, once per machine, and finds the sgemm of torch."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

COMMON = Path(__file__).with_name("native_layers.h")
"""What the C files include."""
_FLAGS = "-O3 -march=native -fno-math-errno -fno-trapping-math -fopenmp -shared -fPIC".split()
_WIDE = ["-mprefer-vector-width=512"]


class NoNativeKernels(RuntimeError):
    """The kernels cannot be compiled here, or not for this model."""


@functools.cache
def blas() -> tuple[int, int | None]:
    """Addresses of the sgemm that torch multiplies with, and of what sets its threads.

    Raises:
        NoNativeKernels: torch has none to show.
    """
    library = _opened(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
    found = [
        ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        if hasattr(library, name)
        else None
        for name in ("sgemm_", "MKL_Set_Num_Threads_Local")
    ]
    if found[0] is None:
        raise NoNativeKernels(f"torch {torch.__version__} does not show its sgemm")
    return found[0], found[1]


def load(source: Path, **definitions: int) -> ctypes.CDLL:
    """Compiles a file if need be, and loads it; see `compiled`."""
    return _opened(compiled(source, **definitions))


@functools.cache
def compiled(source: Path, **definitions: int) -> Path:
    """Compiles a file to a library, which stays in `~/.cache/rlinf`.

    Args:
        source: the C file.
        **definitions: numbers that it is compiled for.

    Returns:
        The library.

    Raises:
        NoNativeKernels: there is no C compiler, or it failed.
    """
    found = next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    compiler = shlex.split(os.environ.get("CC", found))
    if not compiler or shutil.which(compiler[0]) is None:
        raise NoNativeKernels("no C compiler was found: install gcc, or set CC")
    sizes = [f"-D{name}={number}" for name, number in definitions.items()]
    identity = [source.read_text(), COMMON.read_text(), *compiler, *_FLAGS, *sizes, _processor()]
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlinf"
    library = folder / f"native-{digest}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole: other processes may compile the same at the same time.
        handle, name = tempfile.mkstemp(suffix=".so", dir=folder)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="rlinf-native-"))
        library = folder / library.name
        handle, name = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    command = [*compiler, *_FLAGS, *sizes, f"-I{COMMON.parent}", str(source), "-o", name, "-lm"]
    for further in (_WIDE, []):
        done = subprocess.run([*command, *further], capture_output=True, text=True)
        if done.returncode == 0:
            os.chmod(name, 0o755)
            os.replace(name, library)
            return library
    os.unlink(name)
    raise NoNativeKernels(f"{compiler[0]} failed:\n{done.stderr.strip()[-2000:]}")


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NoNativeKernels(f"{path} cannot be loaded: {error}") from error


def _processor() -> str:
    """What `-march=native` depends on: a home folder may be that of several machines."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    features = [line for line in lines if line.startswith(("flags", "Features"))][:1]
    return platform.machine() + "".join(features)
