"""What a benchmark sends to: a server started for it, or one that runs already."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genrec.errors import ArtifactError, InputError


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens for gRPC, what opens its statistics (empty: not restricted), and whom to ask of what."""

    grpc_url: str
    headers: dict[str, str] = field(default_factory=dict)
    ensemble: str = "recommend"
    artifact: Path | None = None  # what it serves, where that is known


@contextmanager
def endpoint(
    artifact: Path,
    url: str | None = None,
    server_json: Path | None = None,
    ensemble: str = "recommend",
    **options: Any,
) -> Iterator[Endpoint]:
    """The server at `url`, the one a launcher described in `server_json`, or one started here and ended after.

    `options` are the launcher's (beam_width, threads, arena_slots). Raises InputError, ArtifactError,
    LaunchError.
    """
    if url:
        yield Endpoint(url, ensemble=ensemble, artifact=artifact)
    elif server_json:
        yield replace(read_server_json(server_json), ensemble=ensemble, artifact=artifact)
    else:
        from deploy.launcher import running_server  # here: a client machine needs no server

        with running_server(artifact, **options) as server:
            yield Endpoint(server.grpc_url, server.grpc_headers, ensemble, artifact)


def read_server_json(path: Path) -> Endpoint:
    """What `genrec serve` leaves in its run folder."""
    try:
        about = json.loads(path.read_text())
        return Endpoint(about["grpc_url"], dict(about["grpc_headers"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(path, f"does not describe a server: {error}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments every benchmark against a server has."""
    parser.add_argument(
        "artifact", type=Path, help="artifact folder: histories, and what is served without --url"
    )
    parser.add_argument("--url", help="host:port (gRPC) of a running server; none: start one")
    parser.add_argument(
        "--server-json", type=Path, help="server.json of a running `genrec serve` (has the token)"
    )
    parser.add_argument(
        "--ensemble",
        default="recommend",
        help="or recommend_staged, recommend_draft, rank, recommend_and_rank",
    )
    parser.add_argument("--beam-width", type=int, default=128, help="of the server started here")
    parser.add_argument(
        "--threads", type=int, default=0, help="of an engine process started here; 0: all cores"
    )
    parser.add_argument("--streams", type=int, default=1, help="batches that `generate` runs at once")
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the order of histories and of the arrivals")


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The launcher's options among the arguments; none for a server that runs already."""
    if arguments.url and arguments.server_json:
        raise InputError("url", "is given together with --server-json", "one of the two")
    return {
        "ensemble": arguments.ensemble,
        "beam_width": arguments.beam_width,
        "threads": arguments.threads,
        "streams": arguments.streams,
    }
