"""When the router refuses: the one list of its limits."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from genrec.errors import InputError


def _limit(default: int, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Limits:
    """How many requests a server gets at once, and how many may wait for it, how long; each for gRPC and for HTTP."""

    in_flight: int = _limit(12, "requests that a server gets at once, over each protocol")
    waiting: int = _limit(4, "requests that may wait for a server, over each protocol; more are refused")
    wait_ms: int = _limit(50, "how long a request waits before it is refused")

    def __post_init__(self) -> None:
        """Raises InputError."""
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise InputError(each.name, f"is {getattr(self, each.name)}", "at least 1")
