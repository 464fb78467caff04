"""`rlinf serve RUN`: an OpenAI-compatible endpoint in front of the language model of a run."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf.agents.serving.endpoint import Endpoint
    from rlinf.agents.serving.router import Router
    from rlinf.agents.serving.session_file import SessionFile
    from rlinf.cli.language_model import LanguageModel

_EXAMPLES = """\
examples:
  rlinf serve logs/arithmetic_grpo                               # its newest checkpoint
  rlinf serve logs/arithmetic_grpo/latest/checkpoints/global_step_80 --port 8000
  rlinf serve models/SmolLM2-135M-Instruct                       # a model folder

The address and the key are in endpoint.json of the folder:
  curl -H "Authorization: Bearer $KEY" $URL/models
"""
_LONGEST = 512
"""Tokens of an answer when neither the request nor the run names a limit."""


def add_parser(commands: Any) -> None:
    """Add `serve` to the sub-commands."""
    parser = commands.add_parser(
        "serve",
        help="serve the language model of a run to OpenAI clients",
        description="Serve the language model of a run by OpenAI's API. Address and key are "
        "written to endpoint.json in its folder, which only you can read.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder",
        metavar="RUN",
        help="folder of a run, an experiment or a checkpoint, or a model in Hugging Face layout",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; loopback unless given"
    )
    parser.add_argument("--port", type=int, default=0, help="a free one unless given")
    parser.add_argument("--model-name", metavar="NAME", help="for requests; that of the run if not")
    parser.add_argument(
        "--max-running",
        metavar="N",
        type=int,
        default=32,
        help="answers of an engine at a time (32)",
    )
    parser.add_argument(
        "--engines", metavar="N", type=int, default=1, help="engines, one for each GPU in turn (1)"
    )
    parser.add_argument(
        "--rate", metavar="N", type=float, default=100.0, help="requests a second of one address"
    )
    parser.add_argument(
        "--max-body", metavar="MIB", type=float, default=4.0, help="largest request (4 MiB)"
    )
    parser.add_argument(
        "--tool-parser", metavar="NAME", help="format of tool calls; the run's own, or qwen"
    )
    parser.add_argument(
        "--sessions",
        metavar="FILE",
        help="where sessions are written that got a reward; sessions.jsonl of the folder if not",
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="of requests without one")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load the model and serve it until somebody ends it.

    Returns:
        0; 1 if the model cannot be loaded, nobody can listen, or all engines have failed; 2 for
        wrong usage.
    """
    if not 0 <= args.port <= 65535:
        print(f"rlinf serve: --port is {args.port}: 0 to 65535 is needed", file=sys.stderr)
        return 2
    for name in ("max-running", "max-body", "engines", "rate"):
        value, name = getattr(args, name.replace("-", "_")), f"--{name}"
        if value <= 0:
            print(f"rlinf serve: {name} is {value}: more than 0 is needed", file=sys.stderr)
            return 2
    try:
        return asyncio.run(_serve(args))
    except (ValueError, OSError) as error:
        print(f"rlinf serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


async def _serve(args: argparse.Namespace) -> int:
    from rlinf.agents.serving.endpoint_file import new_key, remove_endpoint, write_endpoint
    from rlinf.agents.serving.limits import Limits
    from rlinf.agents.serving.router import Router
    from rlinf.agents.serving.server import Server
    from rlinf.agents.serving.session_file import SessionFile
    from rlinf.hybrid_engines.generation.hosting import HostedEngine
    from rlinf.utils.awaiting import first_of

    models = [_load(args, number) for number in range(args.engines)]
    found = models[0]
    record = SessionFile(Path(args.sessions or found.run / "sessions.jsonl"))
    engines = [HostedEngine(model.engine, f"engine {i}") for i, model in enumerate(models)]
    key = new_key()
    stopped, lost = _stop_event(), asyncio.Event()

    def tell_death(name: str, reason: str) -> None:
        _complain(f"{name} is left out from now on: {reason}")
        if not router.alive:
            lost.set()

    router = Router(engines, tell_death)
    endpoint = _endpoint(args, found, router, record)
    limits = Limits(requests_per_second=args.rate, body_bytes=int(args.max_body * 2**20))
    server = Server(endpoint, key, limits)
    try:
        url = await server.start(args.host, args.port)
        path = write_endpoint(found.run, url, key, endpoint.model)
        try:
            print(
                f"{found.name}\nserving at {url}; the key is in {path}; Ctrl-C ends it", flush=True
            )
            await first_of(stopped.wait(), lost.wait())
        finally:
            remove_endpoint(found.run, key)
            await server.stop()
    finally:
        for engine in engines:
            engine.close()
    if lost.is_set():
        # What made them fail may have spoilt the device: a process of its own begins anew.
        _complain("no engine is left, and none can be made anew in this process; start it again")
    return int(lost.is_set())


def _load(args: argparse.Namespace, number: int) -> LanguageModel:
    """Load the model of one of the engines."""
    import torch

    from rlinf.cli.language_model import load_language_model

    devices = torch.cuda.device_count()
    return load_language_model(
        args.folder,
        "serve",
        max_running=args.max_running,
        # Requests without a seed get others from each engine.
        seed=args.seed * args.engines + number,
        device=f"cuda:{number % devices}" if devices else None,
    )


def _complain(text: str) -> None:
    print(f"rlinf serve: {text}", file=sys.stderr, flush=True)


def _endpoint(
    args: argparse.Namespace, found: LanguageModel, backend: Router, record: SessionFile
) -> Endpoint:
    from rlinf.agents.serving.backend import Drawing
    from rlinf.agents.serving.endpoint import Endpoint
    from rlinf.agents.serving.sessions import Sessions

    params = found.params
    parser = args.tool_parser or found.parser or "qwen"
    if args.tool_parser is None and parser == "searchr1":
        parser = "qwen"  # Calls within the text are text to clients.
    return Endpoint(
        backend,
        found.tokenizer,
        args.model_name or found.short_name,
        Drawing(
            max_new_tokens=params.max_new_tokens or _LONGEST,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=max(params.top_k, 0),
            stop_token_ids=params.stop_token_ids,
        ),
        has_template=found.data.apply_chat_template,
        system_prompt=found.data.system_prompt,
        parser=parser,
        stops=params.stop,
        sessions=Sessions(record.add),
    )


def _stop_event() -> asyncio.Event:
    """Return an event that comes with Ctrl-C, or when the process is asked to end."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped
