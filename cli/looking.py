"""`genrec trace` and `genrec web`: what they take. What they do is imported when they run: it takes a second."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.options import add_artifact, add_protocol, add_retrieve, add_settings, add_top_k, numbers
from cli.recommend import add_groups


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """One request, and where its spans are seen."""
    parser.add_argument(
        "server", help="host:port of a server, or the server.json of a running `genrec serve`"
    )
    parser.add_argument(
        "--history", type=numbers, required=True, help="item ids, oldest first, e.g. 50,172,1"
    )
    add_top_k(parser)
    parser.add_argument("--deadline-ms", type=int, help="after so long the server gives up")
    parser.add_argument(
        "--ensemble",
        default="recommend",
        help="recommend_staged shows every pass; rank wants --candidates; default: %(default)s",
    )
    parser.add_argument("--candidates", type=numbers, help="item ids to rank, e.g. 7,98,100")
    parser.add_argument("--exclude", type=numbers, help="item ids that are not answered")
    parser.add_argument("--only", type=numbers, help="item ids besides which none are answered")
    add_groups(parser)
    add_retrieve(parser, "how many items recommend_and_rank finds")
    add_protocol(parser)
    parser.add_argument(
        "--collector",
        help="where the server sends spans; default: as server.json says, else http://127.0.0.1:4318/v1/traces",
    )
    parser.add_argument("--svg", type=Path, help="draw it into this file, too")


def trace(a: argparse.Namespace) -> None:
    """Ask once, and draw."""
    from cli.trace import run

    run(a)


def add_web_arguments(parser: argparse.ArgumentParser) -> None:
    """The artifact, the page's port, and a server that runs already."""
    add_artifact(parser)
    parser.add_argument("--port", type=int, default=8080, help="of the page; default: %(default)s")
    parser.add_argument(
        "--server",
        help="a running server of the artifact: its server.json, or host:port of HTTP; default: start one",
    )
    add_settings(parser, "beam_width")


def web(a: argparse.Namespace) -> None:
    """Serve the page until SIGINT or SIGTERM."""
    from cli.web.serve import run

    run(a)
