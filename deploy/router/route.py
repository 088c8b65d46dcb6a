"""`genrec route` keeps a fleet until Ctrl-C; `genrec rollout`, another process, tells it where to go.

They speak JSON lines over a socket in the router's folder in /dev/shm, which only its user can open: one request
{"old", "new", "share"}; then {"told"} any number of times, and {"done"} or {"error"}. A caller who goes away breaks the
rollout off, and it is undone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.ports import choose_ports
from deploy.router.fleet import STATE, Fleet, running_fleet, where
from deploy.router.haproxy import FOLDER
from deploy.router.limits import Limits
from deploy.signals import until_interrupted
from genrec import leftovers
from genrec.errors import GenrecError, InputError
from genrec.words import command

CONTROL = "control"
LOOK_S = 0.5


class RolloutFailed(GenrecError):
    """The router's message of why it did not go where it was told to, and is where it was before; or, where the old
    servers did not end as they should, of that: it is where it was told to be.
    """


def route(
    artifact: Path,
    servers: int,
    limits: Limits,
    http_port: int | None = None,
    grpc_port: int | None = None,
    metrics_port: int | None = None,
    **options: Any,
) -> None:
    """Serve an artifact with so many servers behind a router, until SIGINT or SIGTERM. Raises as `running_fleet`."""
    ports = choose_ports(http_port, grpc_port, metrics_port)
    with until_interrupted(), running_fleet(artifact, servers, limits, ports, **options) as fleet:
        at = fleet.router.ports
        print(f"http {at.http_url}  grpc {at.grpc_url}  metrics http://{at.metrics_url}/metrics")
        for server in fleet.serving.servers:
            print(f"  {where(server)}")
        print(f"{command('rollout', artifact, 'NEW')} changes the artifact; Ctrl-C ends it", flush=True)
        obey(fleet)


def obey(fleet: Fleet) -> None:
    """Do what callers ask, one after the other, for as long as router and servers are there."""
    while True:
        fleet.check()
        with socket.socket(socket.AF_UNIX) as listening:
            _hear(fleet, listening)


def _hear(fleet: Fleet, listening: socket.socket) -> None:
    """The same, until the socket's name is gone: the router's folder may be removed, and made anew."""
    # It takes its name once it listens: nobody is refused.
    name, unheard = fleet.router.folder / CONTROL, fleet.router.folder / f"{CONTROL}.partial"
    listening.bind(str(unheard))
    listening.listen()
    unheard.rename(name)
    listening.settimeout(LOOK_S)
    while name.exists():
        fleet.check()
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(LOOK_S)
            _answer(fleet, connection)


def _answer(fleet: Fleet, connection: socket.socket) -> None:
    """One caller's request. Whatever is wrong with it, the fleet goes on."""

    def say(kind: str, text: str) -> None:
        connection.sendall(json.dumps({kind: text}).encode() + b"\n")

    try:
        with connection.makefile("r") as lines:
            asked = json.loads(lines.readline())
        if asked["old"] != str(served := fleet.serving.artifact):  # another rollout was first
            raise InputError("old", f"is {asked['old']}, which is served no more", str(served))
        fleet.move(Path(asked["new"]), int(asked["share"]), lambda text: say("told", text))
        kind, text = "done", f"{fleet.serving.artifact} serves{_rest(fleet)}"
    except GenrecError as error:
        kind, text = "error", str(error)
    except Exception as error:
        kind, text = "error", f"{type(error).__name__}: {error}"
    with suppress(OSError):  # the caller may be gone
        say(kind, text)


def _rest(fleet: Fleet) -> str:
    return f", {fleet.coming.artifact} answers {fleet.share} % of the users" if fleet.coming else ""


def rollout(old: Path, new: Path, share: int, tell: Callable[[str], None], router: str = "") -> str:
    """Let the router that serves `old` move `share` percent of its users to `new`; returns what serves then.

    `router`: see `folder_of`. Raises InputError as that, RolloutFailed with the router's message.
    """
    asked = {"old": str(old.resolve()), "new": str(new.resolve()), "share": share}
    folder = folder_of(old.resolve(), router)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(folder / CONTROL))
            connection.sendall(json.dumps(asked).encode() + b"\n")
            with connection.makefile("r") as lines:
                for line in lines:
                    ((kind, text),) = json.loads(line).items()
                    if kind == "done":
                        return str(text)
                    if kind == "error":
                        raise RolloutFailed(text)
                    tell(text)
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError) as error:
        raise RolloutFailed(f"{old}: its router has just begun, or is ending") from error
    raise RolloutFailed(f"{old}: its router has ended")


def folder_of(artifact: Path, router: str = "") -> Path:
    """The folder of the router that serves an artifact; of several the one with `router`, host:port of either protocol.

    Raises InputError where no router of this machine does, or more than one.
    """
    served: dict[str, list[tuple[list[str], Path]]] = {}
    for folder in leftovers.of_the_living(FOLDER):
        try:
            about = json.loads((folder / STATE).read_text())
            served.setdefault(about["serving"], []).append((about.get("at", [folder.name]), folder))
        except (OSError, ValueError, KeyError):
            continue  # it starts, or ends
    if str(artifact) not in served:
        raise InputError(
            "old",
            f"{artifact} is served by no router here",
            ", ".join(served) or f"see {command('route', artifact)}",
        )
    found = [(at, folder) for at, folder in served[str(artifact)] if not router or router in at]
    if len(found) == 1:
        return found[0][1]
    names = " or ".join(at[0] for at, _ in served[str(artifact)])
    if router:
        raise InputError("router", f"is {router}, where nobody serves {artifact}", names)
    problem = f"{artifact} is served by {len(found)} routers here"
    raise InputError("old", problem, f"one of them, with --router {names}")
