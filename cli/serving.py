"""`genrec serve`: a server of one artifact."""

from __future__ import annotations

import argparse

from cli.options import add_artifact, add_settings, counts, folder, names, seconds, tell_outdated
from genrec.settings import chosen_fields


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The artifact, addresses, what is served of it, and every setting of a server."""
    add_artifact(parser)
    for name in ("http", "grpc", "metrics"):
        parser.add_argument(f"--{name}-port", type=int, help="default: a free one")
    parser.add_argument(
        "--address", default="127.0.0.1", help="0.0.0.0: others can reach it; default: %(default)s"
    )
    parser.add_argument("--i-know", action="store_true", help="listen there with an old Triton all the same")
    parser.add_argument(
        "--run-dir", type=folder, help="where the log and server.json go; default: a temporary folder"
    )
    parser.add_argument(
        "--start-timeout-s", type=seconds, default=120.0, help="that a start may take; default: %(default)g"
    )
    add_settings(parser, *(each.name for each in chosen_fields()))
    parser.add_argument(
        "--instances", type=counts, default={}, help="processes of a model, e.g. encode_history=2,decode=2"
    )
    parser.add_argument(
        "--ensembles", type=names, default=(), help="e.g. recommend: fewer models, less memory; default: all"
    )


def run(a: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    from deploy.launcher import serve

    tell_outdated(a.artifact)
    given = ["http_port", "grpc_port", "metrics_port", "ensembles", "instances", "run_dir"]
    given += ["address", "i_know", "start_timeout_s"]
    given += [each.name for each in chosen_fields()]
    serve(a.artifact, **{name: getattr(a, name) for name in given})
