"""`genrec route` and `genrec rollout`: several servers behind a router, and the change of what they serve."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from cli.options import add_artifact, add_settings, at_least, names, seconds, tell_outdated
from deploy.router.limits import MOST_SERVERS, Limits
from genrec.errors import InputError
from genrec.settings import chosen_fields


def add_route_arguments(parser: argparse.ArgumentParser) -> None:
    """What is served, by how many, and when the router refuses."""
    add_artifact(parser)
    parser.add_argument(
        "--servers", type=at_least(1, MOST_SERVERS), default=2, help=f"1 to {MOST_SERVERS}; default: 2"
    )
    for name in ("http", "grpc", "metrics"):
        parser.add_argument(f"--{name}-port", type=int, help="of the router; default: a free one")
    parser.add_argument(
        "--start-timeout-s",
        type=seconds,
        default=120.0,
        help="that the start of a server may take; default: %(default)g",
    )
    parser.add_argument("--targets", type=Path, help="a file for Prometheus (file_sd), kept up to date")
    parser.add_argument("--ensembles", type=names, default=(), help="e.g. recommend; default: all")
    for each in fields(Limits):
        parser.add_argument(
            f"--{each.name.replace('_', '-')}",
            type=at_least(1, each.metadata["most"]),
            default=each.default,
            help=f"{each.metadata['help']}; 1 to {each.metadata['most']}; default: {each.default}",
        )
    add_settings(parser, *(each.name for each in chosen_fields()))


def route(a: argparse.Namespace) -> None:
    """Until Ctrl-C."""
    from deploy.router.route import route

    if a.nodes > 1:
        limit = "1: its servers would all be the same node; start each with `genrec serve`"
        raise InputError("nodes", f"is {a.nodes} behind one router", limit)
    given = [
        "http_port",
        "grpc_port",
        "metrics_port",
        "start_timeout_s",
        "targets",
        "ensembles",
        *(each.name for each in chosen_fields()),
    ]
    limits = Limits(**{each.name: getattr(a, each.name) for each in fields(Limits)})
    tell_outdated(a.artifact)
    route(a.artifact, a.servers, limits, **{name: getattr(a, name) for name in given})


def add_rollout_arguments(parser: argparse.ArgumentParser) -> None:
    """From where to where, and how far."""
    parser.add_argument("old", type=Path, help="the artifact that a router of this machine serves")
    parser.add_argument("new", type=Path, help="the artifact to serve instead")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--share",
        type=at_least(1, 100),
        default=100,
        help="percent of the users, to stop there, 1 to 100; default: 100, all",
    )
    how.add_argument("--undo", action="store_true", help="all users back to OLD, the servers of NEW ended")
    parser.add_argument(
        "--router",
        default="",
        help="its host:port of HTTP or gRPC, where several serve OLD; default: the one that does",
    )


def rollout(a: argparse.Namespace) -> None:
    """Do it, and say how far it is."""
    from deploy.router.route import rollout

    tell_outdated(a.new)
    share, tell = 0 if a.undo else a.share, lambda text: print(f"  {text}", flush=True)
    print(rollout(a.old, a.new, share, tell, a.router))
