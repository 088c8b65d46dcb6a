"""A server that runs already, as a person names it: host:port, or the server.json of its launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from clients.wire import check_url
from genrec.errors import ArtifactError, InputError


class ServerUrls(NamedTuple):
    """host:port of each protocol, and the collector that the server sends spans to; "" is not known, or none."""

    grpc_url: str
    http_url: str
    metrics_url: str = ""
    trace_url: str = ""


def read_server(given: str) -> ServerUrls:
    """What is known of it. Raises ArtifactError for a file that tells nothing, InputError for an address."""
    path = Path(given)
    if path.suffix != ".json":
        try:
            check_url(given)
        except InputError as error:
            raise InputError(
                "server", error.problem, f"the server.json of a run folder, or {error.limit}"
            ) from error
        return ServerUrls(given, given)
    try:
        about = json.loads(path.read_text())
        return ServerUrls(**{name: str(about[name]) for name in ServerUrls._fields})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(path, f"does not describe a server: {error}") from error
