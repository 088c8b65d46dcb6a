"""HAProxy's configuration, rendered from a list of servers and a few limits.

- A user (header `x-gr-user`) is hashed to one server, over gRPC and HTTP to the same one: both backends have the same
  ids. Without the header, requests go round. A server takes at most twice the mean load; beyond, users go to the next.
- A server gets so many requests at once, and so many more wait for a short time. What is beyond that is refused here:
  inside Triton a refusal costs a core, and goodput falls beyond the capacity. Each has a queue of its own, so that one
  that hangs fills no other's.
- Only inference, metadata and health pass; what controls a server does not. Over HTTP inference is that of ensembles:
  some inner models can be asked so that Triton 2.51 never answers. Over gRPC the name is in the message, where a second
  one, behind all that HAProxy has read of it, takes the place of the first: there nothing is kept from inner models.
- A client's cancel is passed on, and can end a Triton 2.51 (H2): `deadline_ms` is the way to give up here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from clients.wire import USER_HEADER
from deploy.ports import LOOPBACK, Ports
from deploy.router.limits import Limits
from ensembles.served import served

TEMPLATE = Path(__file__).with_name("haproxy.cfg")
NO_SERVER = 1  # the port of a place that no server has yet; such a place is disabled
BALANCE_FACTOR = 200  # percent of the mean load that a server takes at most
MOST_BYTES = 64 << 20  # of a body over either protocol: what current Triton accepts over HTTP
BACKENDS = ("be_grpc", "be_http")
OPEN_CALLS = ("ModelInfer", "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata")
ENSEMBLES = "|".join(each.name for each in served(1, draft=True, ranker=True))
OPEN_PATHS = (
    r"^/v2(/health/(live|ready)|/models/[^/]+(/versions/[0-9]+)?(/ready)?"
    rf"|/models/({ENSEMBLES})(/versions/[0-9]+)?/infer)?/?$"
)


@dataclass(frozen=True)
class ServerPlace:
    """A place for a server in both backends; `http` and `grpc` are its ports, `weight` 0 to 100 its share of users."""

    name: str
    http: int = NO_SERVER
    grpc: int = NO_SERVER
    weight: int = 0


def render(places: Sequence[ServerPlace], servers: int, limits: Limits, ports: Ports, admin: Path) -> str:
    """The whole file, for so many servers at a time in these places.

    `admin` is the socket by which places are filled, weighed and emptied while it runs.
    """
    numbered = list(enumerate(places, 1))
    return Template(TEMPLATE.read_text("utf-8")).substitute(
        admin=admin,
        address=LOOPBACK,
        grpc_port=ports.grpc,
        http_port=ports.http,
        metrics_port=ports.metrics,
        wait_ms=limits.wait_ms,
        in_flight=limits.in_flight,
        waiting=limits.waiting * servers,
        waiting_each=limits.waiting,
        factor=BALANCE_FACTOR,
        header=USER_HEADER,
        most_bytes=MOST_BYTES,
        calls=" ".join(f"/inference.GRPCInferenceService/{call}" for call in OPEN_CALLS),
        paths=OPEN_PATHS,
        grpc_servers="\n".join(_server(*each, each[1].grpc, "proto h2 check-proto h1 ") for each in numbered),
        http_servers="\n".join(_server(*each, each[1].http, "") for each in numbered),
    )


def _server(number: int, place: ServerPlace, port: int, protocol: str) -> str:
    """A place in one of the backends; Triton tells its health over HTTP alone."""
    off = " disabled" if place.http == NO_SERVER else ""
    about = f"{protocol}check port {place.http} id {number} weight {place.weight}{off}"
    return f"    server {place.name} {LOOPBACK}:{port} {about}"
