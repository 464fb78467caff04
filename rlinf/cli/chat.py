"""`rlinf chat RUN`: ask the language model of a run, and read its answers as they are made."""

from __future__ import annotations

import argparse
import contextlib
import re
import secrets
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf.cli.chat_model import Answer, ChatModel
    from rlinf.data.datasets.base import Message

_EXAMPLES = """\
examples:
  rlinf chat logs/arithmetic_grpo                                # its newest checkpoint
  rlinf chat logs/arithmetic_grpo/latest/checkpoints/global_step_80
  rlinf chat models/SmolLM2-135M-Instruct --temperature 0.7      # a model folder
  rlinf chat logs/arithmetic_grpo "12+34=" --greedy              # one answer
  echo "12+34=" | rlinf chat logs/arithmetic_grpo
"""
_NEW = "/new   forget what was said, and begin another conversation"
_HELP = """\
/exit  leave; so does Ctrl-D
/help  this list
Ctrl-C ends an answer early"""
_INTERRUPTED = 128 + signal.SIGINT


def add_parser(commands: Any) -> None:
    """Add `chat` to the sub-commands."""
    parser = commands.add_parser(
        "chat",
        help="talk to the language model of a run",
        description="Ask the language model of a run, with the prompts and the sampling that it "
        "was trained with, and read its answers as they are made.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder",
        metavar="RUN",
        help="folder of a run, an experiment or a checkpoint, or a model in Hugging Face layout",
    )
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="?", help="answer this and leave; by default, converse"
    )
    drawing = parser.add_mutually_exclusive_group()
    drawing.add_argument(
        "--temperature", metavar="T", type=float, help="how tokens are drawn; the run's own if not"
    )
    drawing.add_argument("--greedy", action="store_true", help="take the likeliest tokens")
    parser.add_argument(
        "--max-new-tokens", metavar="N", type=int, help="of an answer; the run's own if not"
    )
    parser.add_argument(
        "--seed", metavar="S", type=int, help="the same seed gives the same answers again"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load the model and answer.

    Returns:
        0; 1 if the model cannot be loaded or the prompt not be answered; 2 for wrong usage; 130
        if Ctrl-C ended the only answer.
    """
    prompt = args.prompt
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().rstrip("\n")
    if prompt is not None and not prompt.strip():
        where = "standard input" if args.prompt is None else "PROMPT"
        print(f"rlinf chat: nothing is asked: {where} is empty", file=sys.stderr)
        return 2
    try:
        return _talk(args, prompt)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _talk(args: argparse.Namespace, prompt: str | None) -> int:
    from rlinf.cli.chat_model import Wishes, load_chat_model

    seed = secrets.randbits(31) if args.seed is None else args.seed
    try:
        wishes = Wishes(args.temperature, args.max_new_tokens, args.greedy, seed)
    except ValueError as error:
        print(f"rlinf chat: {error}", file=sys.stderr)
        return 2
    try:
        model = load_chat_model(args.folder, wishes)
        return _converse(model) if prompt is None else _answer_once(model, prompt)
    except ValueError as error:
        print(f"rlinf chat: {error}", file=sys.stderr)
        return 1


def _answer_once(model: ChatModel, prompt: str) -> int:
    answer = _answer(model, [], prompt)
    if answer.reason == "length":
        print(f"rlinf chat: cut after {answer.tokens} tokens", file=sys.stderr)
    return _INTERRUPTED if answer.reason == "abort" else 0


def _converse(model: ChatModel) -> int:
    """Read prompts from the terminal and answer them until the user leaves."""
    # Gives `input` a line that can be edited, and the prompts before it; not every Python has it.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    print("\n".join(_greeting(model)))
    said: list[Message] = []
    leaving = False
    while True:
        try:
            prompt = input("> ").strip()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            if leaving:
                return 0
            leaving = True
            print("Ctrl-C again, Ctrl-D or /exit leaves")
            continue
        leaving = False
        if prompt in ("/exit", "/quit"):
            return 0
        if prompt == "/new":
            said = []
            print("a new conversation")
        elif prompt == "/help":
            print(f"{_NEW}\n{_HELP}" if model.has_turns else _HELP)
        elif re.fullmatch(r"/[a-z]+", prompt):
            print(f"there is no command {prompt}; /help lists them")
        elif prompt:
            said = _turn(model, said, prompt)


def _turn(model: ChatModel, said: list[Message], prompt: str) -> list[Message]:
    """Answer a prompt; return all that was said by then."""
    try:
        answer = _answer(model, said, prompt)
    except ValueError as error:
        print(error)
        return said
    if answer.reason == "length":
        print(f"(cut after {answer.tokens} tokens)")
    elif answer.reason == "abort":
        print("(stopped)")
    if not model.has_turns:
        return said
    return [*said, model.message(prompt), {"role": "assistant", "content": answer.text}]


def _answer(model: ChatModel, said: list[Message], prompt: str) -> Answer:
    def show(text: str) -> None:
        print(text, end="", flush=True)

    with _Interrupt() as interrupt:
        answer = model.answer(said, prompt, show, lambda: interrupt.came)
    print(flush=True)
    return answer


def _greeting(model: ChatModel) -> list[str]:
    params = model.params
    drawn = "greedy" if params.greedy else f"temperature {params.temperature:g}"
    limit = params.max_new_tokens
    length = "" if limit is None else f", at most {limit} new tokens"
    turns = "it remembers what was said" if model.has_turns else "each prompt stands alone"
    return [model.name, f"{drawn}{length}; {turns}; /help lists commands, Ctrl-D leaves"]


class _Interrupt:
    """Takes Ctrl-C in its block, so that an answer ends between two tokens; twice, at once.

    Attributes:
        came: Whether there was one.
    """

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> _Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True
