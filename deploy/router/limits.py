"""When the router refuses: the one list of its limits."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from genrec.errors import InputError
from genrec.settings import MAX_DEADLINE_MS

MOST_SERVERS = 16
MOST_CONNECTIONS = 8192  # that the router has at once: `maxconn` of haproxy.cfg


def _limit(default: int, most: int, help: str) -> Any:
    return field(default=default, metadata={"help": help, "most": most})


@dataclass(frozen=True)
class Limits:
    """How many requests a server gets at once, and how many may wait for it, how long; each for gRPC and for HTTP."""

    in_flight: int = _limit(12, MOST_CONNECTIONS, "requests that a server gets at once, over each protocol")
    waiting: int = _limit(
        4, MOST_CONNECTIONS, "requests that may wait for a server, over each protocol; more are refused"
    )
    wait_ms: int = _limit(50, MAX_DEADLINE_MS, "how long a request waits before it is refused")

    def __post_init__(self) -> None:
        """Raises InputError."""
        for each in fields(self):
            value, most = getattr(self, each.name), each.metadata["most"]
            if not 1 <= value <= most:
                raise InputError(each.name, f"is {value}", f"1 to {most}")
