"""Composes a config from YAML files with Hydra, and says plainly what is wrong with the files."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.config.errors import ABSENT, ConfigError, Problem
from rlinf.config.overrides import (
    SUFFIXES,
    Parts,
    merged_overrides,
    plain,
    refused_overrides,
    unreadable_overrides,
)
from rlinf.config.resolvers import register_resolvers
from rlinf.config.suggest import did_you_mean, listed

if TYPE_CHECKING:
    from omegaconf import DictConfig


def build_config(
    config_name: str, overrides: Sequence[str] = (), config_path: str | Path | None = None
) -> DictConfig:
    """Compose a config by name.

    Args:
        config_name: File name without `.yaml`, or a path to the file.
        overrides: Hydra overrides, such as `runner.max_steps=3`. A key that the files do not set
            needs no `+`: the schema knows it.
        config_path: Folder of the file; None looks into `config_folders()`.

    Returns:
        The composed config, not yet checked: pass it to `validate_cfg`.

    Raises:
        ConfigError: There is no such file, or it cannot be read or composed.
    """
    import yaml
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    folder, name = find_config(config_name, config_path)
    parts = Parts(folder, name, (folder, *_elsewhere(folder, name)))
    unreadable = unreadable_overrides(overrides, parts)
    if unreadable:
        raise ConfigError(unreadable)
    register_resolvers()

    def composed(chosen: Sequence[str]) -> DictConfig:
        with _own_hydra(), initialize_config_dir(str(folder), version_base="1.3"):
            return compose(name, overrides=hydra_overrides(chosen, folder, name))

    try:
        cfg = composed(overrides)
        merged = merged_overrides(overrides, composed)
    except yaml.YAMLError as error:
        raise ConfigError([_yaml_problem(error, name)]) from error
    except (HydraException, OmegaConfBaseException) as error:
        own = Problem(f"config '{name}'", ABSENT, plain(error))
        raise ConfigError(refused_overrides(overrides, composed, parts) or [own]) from error
    if merged:
        raise ConfigError(merged)
    return cfg


def hydra_overrides(overrides: Sequence[str], folder: Path, name: str) -> list[str]:
    """Bring overrides into the form that Hydra takes.

    The `defaults` of a config outside of the source tree may name the recipes of the source tree,
    and their parts: an override tells Hydra where they are.

    Args:
        overrides: As the user wrote them.
        folder: Folder of the config.
        name: Its name.
    """
    elsewhere = _elsewhere(folder, name)
    known = [hydra_override(item, (folder, *elsewhere)) for item in overrides]
    if not elsewhere or any(item.startswith("hydra.searchpath") for item in overrides):
        return known
    return [*known, f"hydra.searchpath=[{','.join(f'file://{path}' for path in elsewhere)}]"]


def _elsewhere(folder: Path, name: str) -> list[Path]:
    """Return the folders of the source tree that a config outside of it may name parts of."""
    shipped = sorted((shipped_folder() / "examples").glob("*/config"))
    return [] if folder in shipped or not _has_defaults(folder, name) else shipped


def _has_defaults(folder: Path, name: str) -> bool:
    files = [folder / f"{name}{suffix}" for suffix in SUFFIXES]
    text = next(file for file in files if file.is_file()).read_text(encoding="utf-8")
    return re.search(r"^defaults:", text, re.MULTILINE) is not None


def shipped_folder() -> Path:
    """Return the folder whose `examples` come with this package.

    An installed package has them itself; otherwise they are in the source tree.
    """
    package = Path(__file__).resolve().parents[1]
    return package if (package / "examples").is_dir() else package.parent


def config_folders() -> list[Path]:
    """Return the folders in which configs are looked up by name.

    These are the current folder, its `config`, and every `config` folder under `examples` of the
    current folder and of `shipped_folder`.
    """
    here = Path.cwd()
    folders = [here, here / "config"]
    for root in dict.fromkeys([here, shipped_folder()]):
        folders += sorted(path for path in (root / "examples").rglob("config") if path.is_dir())
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def config_names(folder: Path) -> list[str]:
    """Return the names of the configs in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.y*ml") if path.suffix in SUFFIXES)


def find_config(config_name: str, config_path: str | Path | None) -> tuple[Path, str]:
    """Return the folder and the name of a config; near names if there is none."""
    given = Path(config_name)
    name = given.stem if given.suffix in SUFFIXES else given.name
    if config_path is not None:
        folders = [Path(config_path).expanduser() / given.parent]
    elif given.parent != Path("."):
        folders = [given.parent.expanduser()]
    else:
        folders = config_folders()
    for folder in folders:
        if any((folder / f"{name}{suffix}").is_file() for suffix in SUFFIXES):
            return folder.resolve(), name
    if not any(folder.is_dir() for folder in folders):
        message = f"there is no folder {folders[0]}"
        raise ConfigError([Problem(f"config '{name}'", ABSENT, message)])
    known = {item for folder in folders for item in config_names(folder)}
    places = ", ".join(str(folder) for folder in folders)
    message = f"there is no {name}.yaml in {places}\nconfigs there: {listed(known)}"
    raise ConfigError([Problem(f"config '{name}'", ABSENT, message, did_you_mean(name, known))])


_composing = threading.Lock()


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Set aside the Hydra of a surrounding `@hydra.main` program and put it back afterwards.

    There is one Hydra in a process, so threads compose one after the other.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.version import VersionBase

    with _composing:
        hydra, version = GlobalHydra.instance(), VersionBase.instance()
        kept = hydra.hydra, version.version_base
        hydra.clear()
        try:
            yield
        finally:
            instance = GlobalHydra.instance()
            instance.clear()
            instance.hydra = kept[0]
            VersionBase.instance().version_base = kept[1]


def hydra_override(override: str, folders: Sequence[Path]) -> str:
    """Let a plain override set a key that the files do not mention; groups stay as they are."""
    key, equals, _ = override.partition("=")
    plain = re.fullmatch(r"[A-Za-z_][\w.\-]*", key)
    is_group = any((folder / key).is_dir() for folder in folders)
    if not equals or not plain or key.startswith("hydra.") or is_group:
        return override
    return f"++{override}"


def _yaml_problem(error: Any, name: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or str(error)
    if mark is None:
        return Problem(f"config '{name}'", ABSENT, f"is not valid YAML: {what}")
    message = f"is not valid YAML: {what}"
    snippet = mark.get_snippet()
    if snippet:
        message += f"\n{snippet}"
    place = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
    return Problem(place, ABSENT, message, "check indentation, colons and quotes near that place")
