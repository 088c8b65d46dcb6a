"""What a benchmark sends to: a server started for it, or one that runs already."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genrec.catalogue.files import CATALOGUE
from genrec.draft.options import has_draft
from genrec.errors import ArtifactError, InputError
from genrec.files import check_regular

OWN = {
    "beam_width": 128,
    "threads": 0,
    "streams": 1,
}  # of a server that is started here, if nobody says otherwise


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


def check_drafts(artifact: Path) -> None:
    """Raises ArtifactError for one that cannot serve drafts."""
    check_regular(artifact / CATALOGUE)  # where no artifact is, nothing is wrong with drafts
    if not has_draft(artifact):
        made = "`genrec train ARTIFACT --draft alone`, an export and a build make one"
        raise ArtifactError(artifact, f"has no draft head, which is measured too; {made}")


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
    here = "of the server started here"
    parser.add_argument("--beam-width", type=int, help=f"{here}; default: {OWN['beam_width']}")
    parser.add_argument("--threads", type=int, help=f"of an engine process {here}; 0, the default: all cores")
    parser.add_argument(
        "--streams", type=int, help=f"batches that `generate` {here} runs at once; default: 1"
    )
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the order of histories and of the arrivals")


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The ensemble, and the launcher's options of a server that is started here, which the arguments say from now on.

    Raises InputError for those of a server that runs already: it has its own.
    """
    if arguments.url and arguments.server_json:
        raise InputError("url", "is given together with --server-json", "one of the two")
    runs, options = arguments.url or arguments.server_json, {"ensemble": arguments.ensemble}
    for name, default in OWN.items():
        given = getattr(arguments, name)
        if runs and given is not None:
            raise InputError(
                name.replace("_", "-"),
                f"is {given} of a server that runs already",
                "none, as that has its own",
            )
        if not runs:
            options[name] = default if given is None else given
    vars(arguments).update(options)
    return options
