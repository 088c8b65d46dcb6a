"""What a deployment fixes for all its requests: the one list of settings.

Their environment (`GENREC_*`), the options of the command line and the table in docs/contracts.md follow from the
fields here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from genrec.errors import InputError
from genrec.target import DEFAULT, runnable, target_of

MAX_BEAM_WIDTH = 1024
MOST_NODES = 1024
MOST_STREAMS = 256  # each has threads and a scratch of its own
SIZE_OF = {"pool_disk_mb": "pool_disk", "store_mb": "store"}  # which place a size is of
MAX_DEADLINE_MS = 600_000
MOST_VALUES = 65_536  # of one tensor of a request, so of a history's items: 512 KiB
# Of any setting: libraries count threads so, and bytes of so many MB no further than 64 bits.
MOST_NUMBER = 2**31 - 1
SPAN = 32  # prompts are padded to multiples of this many tokens, so that equal shapes meet in a batch
VERIFY = ("every", "last")
RANKERS = ("auto", "discriminant", "hstu", "hstu-next", "none")  # of several, the first answers
POOL_FILLS = ("none", "idle")
PREFIXES = ("auto", "recompute", "user", "item", "agnostic", "greedy", "past", "hazard", "split")
ENVIRONMENT = "GENREC_"
COLLECTOR = "http://host:port/path, as http://127.0.0.1:4318/v1/traces"
FOLDER = "the absolute path of a folder that is there"
ADDRESS = "host:port, as 10.0.0.1:50051"
_ADDRESS = re.compile(r"[A-Za-z0-9._-]+:(\d{1,5})")
_COLLECTOR = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(:[0-9]{1,5})?/[A-Za-z0-9._~/-]*")


def padded_rows(rows: int) -> int:
    """The batch that `rows` requests run as where shapes are few: the next power of two."""
    return 1 << (rows - 1).bit_length()


def _chosen(
    default: Any, help: str, low: int | None = None, high: int | None = None, one_of: Sequence[str] = (),
    form: str = "",
) -> Any:  # fmt: skip
    """A setting that a person may choose; `form` of text that is none of a few words."""
    limits = {"help": help, "low": low, "high": high, "one_of": one_of, "form": form}
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class Settings:
    """Fields with a help text are for people to choose; the launcher fills the others."""

    artifact: Path
    arena: Path  # file of the KV arena in /dev/shm
    beam_width: int = _chosen(128, "beams kept at every level", 1, MAX_BEAM_WIDTH)
    target: str = _chosen(DEFAULT, "what runs the generator", one_of=runnable())
    threads: int = _chosen(
        0, "cores of an engine process; 0: all, but one for small batches that are hardly faster on more", 0
    )
    streams: int = _chosen(
        1, "batches that `generate` runs at once, on shares of the threads", 1, MOST_STREAMS
    )
    batch_tokens: int = _chosen(
        0,
        "most tokens of a batch: prompts, and one per beam and level; 0: 2048, or what takes 50 ms if that is more",
        0,
    )
    verify: str = _chosen(
        "every", "where drafts are checked against the catalogue: at every level, or at the last alone",
        one_of=VERIFY,
    )  # fmt: skip
    ranker: str = _chosen(
        "auto",
        "which ranker answers; auto: the first in this order that is exported; none: nothing is ranked",
        one_of=RANKERS,
    )
    pool_user_mb: int = _chosen(
        256, "MB of users' KV that rankings and later requests reuse, in /dev/shm; 0: none is kept", 0
    )
    pool_item_mb: int = _chosen(64, "MB of items' KV that rankings reuse, in /dev/shm; 0: none is kept", 0)
    pool_disk: str = _chosen(
        "", "where users' KV goes that the pool may drop, for users who come back; empty: no KV is written to disk",
        form=FOLDER,
    )  # fmt: skip
    pool_disk_mb: int = _chosen(1024, "MB of users' KV in that folder, of all processes of a server", 1)
    pool_fill: str = _chosen(
        "idle", "when items' KV is computed before anybody asks: never (none), or while no ranking runs (idle)",
        one_of=POOL_FILLS,
    )  # fmt: skip
    prefix_choice: str = _chosen(
        "auto", "which KV a ranking reuses; auto: as its ranker was trained", one_of=PREFIXES
    )
    trace_url: str = _chosen(
        "", "OpenTelemetry collector (OTLP/HTTP) for requests with a traceparent; empty: no traces",
        form=COLLECTOR,
    )  # fmt: skip
    rank_budget_ms: int = _chosen(50, "ms after which a ranking without a deadline_ms is due", 1)
    lease_ms: int = _chosen(1000, "ms that a prefix computed ahead waits for its ranking", 1)
    pre_infer_risk: int = _chosen(
        40, "percent of its budget that a ranking must need for its prefix to be computed ahead; 0: always", 0, 100
    )  # fmt: skip
    pre_infer_share: int = _chosen(
        50, "percent of the engine's time that prefixes computed ahead may take", 1, 100
    )
    nodes: int = _chosen(1, "servers that share items' KV", 1, MOST_NODES)
    node: int = _chosen(0, "which of the nodes this is, from 0", 0)
    store: str = _chosen("", "with several nodes, the address of their mooncake_master", form=ADDRESS)
    store_host: str = _chosen("", "with several nodes, this one's own address in the store", form=ADDRESS)
    store_mb: int = _chosen(256, "with several nodes, MB of this one's memory that the store has", 1)
    pool: Path | None = None  # the folder of both in /dev/shm; None: rankings compute everything
    swap: Path | None = None  # where processes agree on a catalogue version; None: the one at the start stays

    def __post_init__(self) -> None:
        """Raises InputError naming the field, its value and what is accepted."""
        target = target_of(self.target)
        if self.streams > 1 and not target.streams:
            raise InputError("streams", f"is {self.streams}", f"1 with target {target.name}")
        for each in chosen_fields():
            value, limits = getattr(self, each.name), each.metadata
            if each.name != "target" and limits["one_of"] and value not in limits["one_of"]:
                raise InputError(each.name, f"is {value!r}", ", ".join(limits["one_of"]))
            low, high = limits["low"], limits["high"]
            if low is not None and not low <= value <= (value if high is None else high):
                raise InputError(each.name, f"is {value}", accepted(each))
            if low is not None and value > MOST_NUMBER:
                raise InputError(each.name, f"is {value}", f"{accepted(each)}, at most {MOST_NUMBER}")
        if self.trace_url and not _is_collector(self.trace_url):
            raise InputError("trace_url", f"is {self.trace_url!r}", COLLECTOR)
        if self.pool_disk and not (Path(self.pool_disk).is_absolute() and Path(self.pool_disk).is_dir()):
            raise InputError("pool_disk", f"is {self.pool_disk!r}", FOLDER)
        self._check_nodes()
        for each in chosen_fields():
            value, place = getattr(self, each.name), SIZE_OF.get(each.name)
            if place and value != each.default and not getattr(self, place):
                raise InputError(each.name, f"is {value} without {place}", f"a size beside {place} alone")

    def _check_nodes(self) -> None:
        """One node is told nothing of others, one of several all of it."""
        several = self.nodes > 1
        for name in ("store", "store_host"):
            address = getattr(self, name)
            if several != bool(address):
                raise InputError(
                    name, f"is {address!r} of {self.nodes} nodes", ADDRESS if several else "none"
                )
            found = _ADDRESS.fullmatch(address)
            if address and not (found and 0 < int(found[1]) < 65536):
                raise InputError(name, f"is {address!r}", ADDRESS)
        if self.node >= self.nodes:
            raise InputError("node", f"is {self.node} of {self.nodes} nodes", f"0 to {self.nodes - 1}")
        if several and self.pool_fill == "none":
            raise InputError("pool_fill", f"is none of {self.nodes} nodes", "idle")

    @classmethod
    def from_environment(cls) -> Settings:
        """Read every field from the variable of its name. Raises InputError."""
        given = {}
        for each in fields(cls):
            variable = ENVIRONMENT + each.name.upper()
            if value := os.environ.get(variable, ""):
                try:
                    given[each.name] = _read(each, value)
                except ValueError as error:
                    raise InputError(variable, f"is {value!r}", "a whole number") from error
            elif each.name in ("artifact", "arena"):
                raise InputError(variable, "is not set", "the launcher sets it")
        return cls(**given)

    def environment(self) -> dict[str, str]:
        """The same as `from_environment` reads it."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {ENVIRONMENT + name.upper(): "" if value is None else str(value) for name, value in values}


def _read(each: Field[Any], value: str) -> Any:
    kind = str(each.type)  # annotations are text here
    return Path(value) if kind.startswith("Path") else int(value) if kind == "int" else value


def _is_collector(url: str) -> bool:
    try:
        return bool(_COLLECTOR.fullmatch(url) and urlsplit(url).port != 0)
    except ValueError:  # a port too high, a bracket too few
        return False


def chosen_fields() -> list[Field[Any]]:
    """The fields that a person may choose."""
    return [each for each in fields(Settings) if "help" in each.metadata]


def accepted(each: Field[Any]) -> str:
    """What a field takes, in words."""
    low, high, one_of = (each.metadata[key] for key in ("low", "high", "one_of"))
    if one_of:
        return ", ".join(one_of)
    if low is None:
        return str(each.metadata["form"])
    return f"at least {low}" if high is None else f"{low} to {high}"


def table() -> str:
    """The fields that a person may choose, as Markdown for docs/contracts.md."""
    rows = [
        f"| `{each.name}` | `{ENVIRONMENT}{each.name.upper()}` | {each.default} | {accepted(each)} | "
        f"{each.metadata['help']} |"
        for each in chosen_fields()
    ]
    head = ["| setting | in the environment | default | accepted | what it is |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"
