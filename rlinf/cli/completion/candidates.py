"""What the last word of a command line may become, by the parser of the command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlinf.cli.run_argument import run_argument

LOGS = "logs"
"""Where runs are looked for before a folder has been typed."""
_MANY = ("*", "+", argparse.REMAINDER)


class Candidate(NamedTuple):
    """A word, and a few words about it.

    One that ends in `=`, `.` or `/` is not yet whole: no space follows it.
    """

    text: str
    about: str = ""


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[Candidate]:
    """Return what the last word may become.

    Args:
        parser: The parser of the whole command.
        words: The words after the name of the command, up to the cursor; the last may be empty.

    Returns:
        Candidates that begin with the last word; none where anything, or a file, may stand.
    """
    *before, word = words or [""]
    found: Iterable[Candidate]
    parser, action, used = _walk(parser, before)
    if action is not None and action.option_strings:
        found = _values(parser, action, word)
    elif word.startswith("--") and "=" in word:
        found = _values_of_option(parser, word)
    elif word.startswith("-"):
        found = _options(parser, used)
    else:
        found = [] if action is None else _values(parser, action, word)
    chosen = {item.text: item for item in found if item.text.startswith(word)}
    return list(chosen.values())


def _walk(
    parser: argparse.ArgumentParser, before: Sequence[str]
) -> tuple[argparse.ArgumentParser, argparse.Action | None, set[argparse.Action | None]]:
    """Follow the words before the last one.

    Returns:
        The parser of the command that they name, the action that takes the next word, and the
        options that have been given.
    """
    taken = 0
    used: set[argparse.Action | None] = set()
    waiting: argparse.Action | None = None
    for word in before:
        if word.startswith("-"):
            option = parser._option_string_actions.get(word.partition("=")[0])
            used.add(option)
            waits = option is not None and option.nargs != 0 and "=" not in word
            waiting = option if waits else None
            continue
        if waiting is not None:
            waiting = waiting if waiting.nargs in _MANY else None
            continue
        action = _positional(parser, taken)
        if isinstance(action, argparse._SubParsersAction):
            if word not in action.choices:
                return parser, None, used
            parser, taken, used = action.choices[word], 0, set()
        else:
            taken += 1
    return parser, waiting or _positional(parser, taken), used


def _positional(parser: argparse.ArgumentParser, taken: int) -> argparse.Action | None:
    """Return what takes the next word if so many have been taken."""
    places = [action for action in parser._actions if not action.option_strings]
    if taken < len(places):
        return places[taken]
    return places[-1] if places and places[-1].nargs in _MANY else None


def _options(
    parser: argparse.ArgumentParser, used: set[argparse.Action | None]
) -> Iterator[Candidate]:
    for action in parser._actions:
        again = isinstance(action, argparse._AppendAction)
        if action.help != argparse.SUPPRESS and (again or action not in used):
            for text in action.option_strings:
                yield Candidate(text, _help(parser, action))


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _values_of_option(parser: argparse.ArgumentParser, word: str) -> Iterator[Candidate]:
    """Yield what `--option=value` may become."""
    name, _, value = word.partition("=")
    action = parser._option_string_actions.get(name)
    if action is not None and action.nargs != 0:
        for item in _values(parser, action, value):
            yield Candidate(f"{name}={item.text}", item.about)


def _values(
    parser: argparse.ArgumentParser, action: argparse.Action, word: str
) -> Iterator[Candidate]:
    """Yield what an argument may be."""
    if isinstance(action, argparse._SubParsersAction):
        yield from (Candidate(item.dest, item.help or "") for item in action._choices_actions)
    elif action.choices is not None:
        yield from (Candidate(str(choice)) for choice in action.choices)
    elif action.type is run_argument or action.metavar in ("RUN", "CKPT", "FOLDER"):
        yield from runs(word)
    elif action.metavar in ("CONFIG", "RECIPE"):
        yield from recipes()
        if parser.get_default("evaluate"):
            yield from runs(word)
    elif action.metavar == "KEY=VALUE":
        yield from keys(word, "env.train." if action.option_strings else "")
    elif action.metavar == "ID":
        yield from envs()
        yield from recipes()


def recipes() -> Iterator[Candidate]:
    """Yield the names of recipes, and YAML files of the current folder."""
    from rlinf.cli.recipes import list_recipes

    yield from (Candidate(recipe.name, recipe.about) for recipe in list_recipes())
    yield from (Candidate(path.name) for path in sorted(Path.cwd().glob("*.yaml")))


def envs() -> Iterator[Candidate]:
    """Yield env types that come with the package."""
    from rlinf.config.plugins import known_names

    yield from (Candidate(name, "env type") for name in known_names("env"))


def runs(word: str) -> Iterator[Candidate]:
    """Yield folders of runs, of experiments and of checkpoints in the folder that was typed.

    Args:
        word: What was typed; without a folder, those of `LOGS` are meant.
    """
    from rlinf.utils.runs.folders import LATEST, is_run

    typed = word.rpartition("/")[0] if "/" in word else LOGS
    folder = Path(typed or "/").expanduser()
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        about = ""
        if is_run(path):
            about = "run"
        elif path.name.startswith("global_step_"):
            about = "checkpoint"
        elif path.is_dir() and ((path / LATEST).is_dir() or any(map(is_run, path.iterdir()))):
            about = "experiment: its newest run"
        if about:
            yield Candidate(f"{typed}/{path.name}", about)


def keys(word: str, below: str = "") -> Iterator[Candidate]:
    """Yield the next part of a key of the config, or the values that it may have.

    Args:
        word: What was typed; Hydra's `+`, `++` and `~` may come first.
        below: Beginning of all keys, which is not typed.
    """
    from rlinf.cli.completion.keys import config_keys

    sign = word[: len(word) - len(word.lstrip("+~"))]
    typed, known = below + word[len(sign) :], config_keys()
    name, equals, _ = typed.partition("=")
    if equals:
        key: Any = known.get(name)
        for value in [] if key is None else key.values:
            yield Candidate(f"{sign}{name[len(below) :]}={value}")
        return
    depth = typed.count(".")
    for path, key in known.items():
        parts = path.split(".")
        if path.startswith(typed) and len(parts) == depth + 1:
            yield Candidate(f"{sign}{path[len(below) :]}{'.' if key.section else '='}", key.about)
