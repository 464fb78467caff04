"""Build, ask and serve a search index: `python -m toolkits.search COMMAND`."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlinf.agents.search.client import KEY_VARIABLE
from rlinf.agents.search.dense_index import DenseIndex, encoder_registry
from rlinf.agents.search.documents import Searcher, SearchUnavailable, read_documents
from rlinf.agents.search.service import SearchService
from rlinf.agents.search.text_index import TextIndex, build_index
from rlinf.config import ConfigError
from rlinf.config.plugins import load_extension


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    args = _parser().parse_args(arguments)
    try:
        return args.run(args)
    except (ConfigError, ValueError, OSError, SearchUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m toolkits.search", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    words = "Build an index of JSONL files."
    sub = commands.add_parser("build", help=words, description=words)
    sub.add_argument("corpus", type=Path, nargs="+", help='lines with "title" and "text"')
    sub.add_argument("index", type=Path, help="file to write")
    sub.add_argument("--stemming", action="store_true", help="`fathers` finds `father` (English)")
    sub.set_defaults(run=_build)

    words = "Print what a query finds."
    sub = commands.add_parser("query", help=words, description=words)
    _searched(sub)
    sub.add_argument("query")
    sub.add_argument("--topk", type=int, default=3, help="most documents")
    sub.set_defaults(run=_query)

    words = f"Answer POST /retrieve until interrupted; {KEY_VARIABLE} holds the key, if any."
    sub = commands.add_parser("serve", help=words, description=words)
    _searched(sub)
    sub.add_argument("--host", default="127.0.0.1", help="address to listen on")
    sub.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    sub.add_argument("--topk", type=int, default=3, help="documents unless a request says")
    sub.set_defaults(run=_serve)
    return parser


def _searched(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("index", type=Path, help="file that `build` wrote")
    sub.add_argument("--embeddings", type=Path, help="NumPy file [documents, size]: a dense search")
    sub.add_argument("--encoder", help="name of register_query_encoder, for --embeddings")
    sub.add_argument(
        "--ext-module", action="append", default=[], help="Python module that registers it"
    )


def _build(args: argparse.Namespace) -> int:
    begin = time.perf_counter()
    documents = itertools.chain.from_iterable(map(read_documents, args.corpus))
    count = build_index(args.index, documents, args.stemming)
    size = args.index.stat().st_size / 2**20
    seconds = time.perf_counter() - begin
    print(f"{args.index}: {count:,} documents, {size:,.1f} MiB, in {seconds:.1f} s")
    return 0


def _query(args: argparse.Namespace) -> int:
    for rank, hit in enumerate(_open(args).search(args.query, args.topk), 1):
        document = hit.document
        print(f"{rank}. [{hit.score:.3g}] {document.id}: {document.title}\n   {document.text}")
    return 0


def _serve(args: argparse.Namespace) -> int:
    key = os.environ.get(KEY_VARIABLE)
    service = SearchService(_open(args), args.host, args.port, key, args.topk)
    print(f"searches are answered at {service.url}; stop with Ctrl-C", flush=True)
    try:
        service.serve()
    except KeyboardInterrupt:
        pass
    return 0


def _open(args: argparse.Namespace) -> Searcher:
    index = TextIndex(args.index)
    if (args.embeddings is None) != (args.encoder is None):
        raise ValueError("a dense search needs both --embeddings and --encoder")
    if args.embeddings is None:
        return index
    load_extension(args.ext_module)
    return DenseIndex(index, args.embeddings, encoder_registry.lookup(args.encoder))


if __name__ == "__main__":
    sys.exit(main())
