"""Requests that nobody should send, from a seed, as tensors; `fuzz_bytes` puts them on the wire."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from genrec.kv.arena import NO_KV, SCRATCH

NUMPY = {"INT64": np.int64, "INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_}
OTHER_TYPES = (
    "INT64",
    "INT32",
    "FP32",
    "BOOL",
    "FP64",
    "UINT8",
    "INT8",
    "FP16",
    "BF16",
    "BYTES",
    "UINT64",
    "INT128",
    "",
)
INTEGERS = (0, 1, -1, 2, 31, 33, 300, 2**31 - 1, -(2**31), 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45)
# Two kinds of shape end Triton 2.51 itself, before any Python of ours runs, so nothing here can mend them (hazard H9;
# the supervisor starts the server again). With JSON `data`, one that says far more than there is: SIGSEGV in the HTTP
# front end; such tensors go as bytes here. And one whose bytes overflow 64 bits: INT64 [1, 2**61] counts as 0 bytes,
# passes the checks without any data, and the stub ends by an uncaught C++ exception.
MOST_JSON_VALUES, MOST_VALUES = 100_000, 2**59
DIMS = (0, 1, 2, 3, 33, -1, 2**31, 2**58, -(2**58))


@dataclass(frozen=True)
class Tensor:
    """What goes over the wire: the bytes need not fit type and shape."""

    name: str
    kind: str
    shape: tuple[int, ...]
    raw: bytes

    @property
    def values(self) -> list[object] | None:
        """For JSON; None when the bytes are no numbers of the type."""
        dtype = np.dtype(NUMPY[self.kind]) if self.kind in NUMPY else None
        if dtype is None or len(self.raw) % dtype.itemsize:
            return None
        if prod(self.shape) > MOST_JSON_VALUES:
            return None
        return np.frombuffer(self.raw, dtype).tolist()


def tensor(name: str, values: object, kind: str = "INT64") -> Tensor:
    array = np.array(values).reshape(1, -1)
    with np.errstate(all="ignore"):
        return Tensor(name, kind, array.shape, array.astype(NUMPY[kind]).tobytes())


@dataclass(frozen=True)
class World:
    """What a forger knows: items of the catalogue, handles that were good once, a draft's states."""

    items: list[int]
    handles: list[tuple[int, ...]]
    states: list[float]
    max_prompt: int
    width: int


def good_history(world: World, number: int) -> list[int]:
    """One of ten histories."""
    start = number % 10
    return world.items[start : start + 1 + start % 7]


class Cases:
    """Cases from one seed. Every method that makes something draws from the same generator."""

    def __init__(self, seed: int, world: World) -> None:
        self.draw, self.world = random.Random(seed), world
        self.models: dict[str, Callable[[], list[Tensor]]] = {
            "recommend": self._recommend, "recommend_staged": self._recommend, "encode_history": self._recommend,
            "generate": self._generate, "prefill": self._prefill,
            "beam_search": self._beam_search, "decode": self._decode, "validity_lookup": self._lookup,
            "recommend_draft": self._recommend, "prefill_draft": self._prefill_draft, "draft_beam": self._draft_beam,
        }  # fmt: skip

    def pick(self, options):
        return self.draw.choice(options)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def case(self) -> tuple[str, list[Tensor]]:
        """A model and its tensors: a plausible request with up to three things wrong."""
        model = self.pick([*self.models])
        tensors = self.models[model]()
        for _ in range(self.pick([0, 0, 1, 1, 2, 3])):
            tensors = self._spoil(tensors)
        if self.chance(0.02):
            model = self.pick(["", "nothing", "recommend/versions/7", "../prefill", "a" * 500, "%00", "é"])
        return model, tensors

    def _spoil(self, tensors: list[Tensor]) -> list[Tensor]:
        if not tensors:
            return tensors
        place = self.draw.randrange(len(tensors))
        spoilt, kept = tensors[place], tensors[:place] + tensors[place + 1 :]
        way = self.pick([self._retype, self._reshape, self._refill, self._refill, self._cut, None, None])
        if way:
            return [*kept, way(spoilt)]
        extra = replace(spoilt, name=self.pick(["surprise", "", "kv", "report", spoilt.name, "x" * 300]))
        return kept if self.chance(0.5) else [*tensors, extra]

    def _retype(self, t: Tensor) -> Tensor:
        return replace(t, kind=self.pick(OTHER_TYPES))

    def _reshape(self, t: Tensor) -> Tensor:
        while True:
            shape = tuple(self.pick(DIMS) for _ in range(self.draw.randrange(5)))
            if prod(max(abs(dim), 1) for dim in shape) <= MOST_VALUES:
                return replace(t, shape=shape)

    def _cut(self, t: Tensor) -> Tensor:
        ways = [t.raw[:-1], t.raw + b"\x80", b"", t.raw * 2, self.draw.randbytes(len(t.raw))]
        return replace(t, raw=self.pick(ways))

    def _refill(self, t: Tensor) -> Tensor:
        """Right type, right bytes; other numbers, another length, another number of rows."""
        rows, count = (
            self.pick([1, 1, 1, 1, 2, 33, 0]),
            self.pick([0, 1, max(t.shape[-1:], default=1) % 64, 5, 7, 1000]),
        )
        if t.kind not in NUMPY:
            return t
        dtype = np.dtype(NUMPY[t.kind])
        values = np.array(self.draw.choices(FLOATS if dtype.kind == "f" else INTEGERS, k=rows * count))
        if dtype.kind == "i":
            values = values.clip(np.iinfo(dtype).min, np.iinfo(dtype).max)
        with np.errstate(all="ignore"):
            return replace(t, shape=(rows, count), raw=values.astype(dtype).tobytes())

    def _integers(self, count: int, below: int) -> list[int]:
        return [self.draw.randrange(below) for _ in range(count)]

    def _ticket(self) -> Tensor:
        deadline = self.pick([0, 0, 0, 1, 2**63 - 1, -5])
        version = self.pick([0, 1, 1, 1, 2, -1])
        top_k, length = self.pick([1, 5, 32, 300]), self.pick([0, 3, 31, 32, 48])
        return tensor("ticket", [top_k, length, deadline, 0, 0, version])

    def _kv(self) -> Tensor:
        real = self.pick(self.world.handles)
        forged = [
            real[0],
            self.draw.randrange(-1, 67),
            self.pick([0, 1, 2, real[2]]),
            self.pick([0, 0, 1, -1]),
        ]
        strange = [self.pick(INTEGERS) for _ in range(4)]
        return tensor("kv", self.pick([real, real, SCRATCH, SCRATCH, NO_KV, forged, strange]))

    def _excluded(self) -> Tensor:
        rows = self.pick(
            [
                [-1],
                self._integers(5, 300),
                [0, 0, -1],
                range(300),
                [300],
                [-2],
                [-2, 5, 9, -1],
                [-3],
                [-3, -1, 0, 5],
                [-3, 0, 0],
                [-3, 1, 0, 0],
                [-3, -1, 2**31 - 1],
            ]
        )
        return tensor("excluded", [*rows], "INT32")

    def _beams(self) -> int:
        return self.pick([1, 2, 12, self.world.width, self.world.width + 1])

    def _recommend(self) -> list[Tensor]:
        known = [self.pick(self.world.items) for _ in range(self.draw.randrange(20))]
        odd = [self.pick(INTEGERS) for _ in range(self.draw.randrange(3))]
        made = [
            tensor("history", [*known, *odd]),
            tensor("top_k", self.pick([1, 5, 32, 0, -1, 33, 2**31 - 1]), "INT32"),
        ]
        optional = [
            tensor("user_id", self.pick(INTEGERS)),
            tensor("deadline_ms", self.pick([1, 50, 600_000, 0, -1, 600_001]), "INT32"),
            tensor("exclude_history", self.chance(0.5), "BOOL"),
            tensor("exclude", [*known[:3], *odd]),
            tensor("only", [*known, *odd]),
            tensor("exclude_groups", odd),
            tensor("only_groups", odd),
        ]
        return made + [t for t in optional if self.chance(0.4)]

    def _generate(self) -> list[Tensor]:
        return [*self._prefill_draft(), self._excluded()]

    def _prefill_draft(self) -> list[Tensor]:
        owner = [self.pick([0, 1, 1, -1]), self.pick(INTEGERS), self.pick(INTEGERS)]
        return [*self._prefill(), *([tensor("owner", owner)] if self.chance(0.4) else [])]

    def _prefill(self) -> list[Tensor]:
        tokens = self._integers(self.pick([0, 1, 32, 48, 49, 64]), self.pick([36, 36, 37, 2**31]))
        return [tensor("tokens", tokens, "INT32"), self._ticket()]

    def _beam_search(self) -> list[Tensor]:
        first = [self._kv(), self._ticket(), self._excluded()]
        if self.chance(0.4):
            return first
        level, width = self.pick([1, 2, 1, 2, 0, 3, -1]), self._beams()
        nodes = np.sort(self._integers(width, self.pick([12, 100, 1000])))
        scores = [-self.draw.random() for _ in range(width)]
        return [
            *first, tensor("paths", self._integers(width, 1728)), tensor("nodes", nodes, "INT32"),
            tensor("scores", scores, "FP32"), tensor("level", level, "INT32"),
        ]  # fmt: skip

    def _decode(self) -> list[Tensor]:
        width = self._beams()
        parents = np.sort(self._integers(width, self.pick([1, width, 33])))
        return [
            self._kv(), self._ticket(), tensor("codes", self._integers(width, self.pick([12, 12, 14])), "INT32"),
            tensor("parents", parents, "INT32"), tensor("level", self.pick([1, 2, 1, 2, 0, 3]), "INT32"),
        ]  # fmt: skip

    def _draft_beam(self) -> list[Tensor]:
        real = self.world.states
        size = self.pick([1, len(real) - 1, len(real) + 1])
        huge = [self.pick([3e38, -3e38, 1e30]) for _ in real]  # finite, but their logits are not
        strange = [self.pick(FLOATS) for _ in real]
        states = self.pick([real, real, real, real[::-1], [0.0] * size, huge, strange])
        return [tensor("states", states, "FP32"), self._ticket(), self._excluded()]

    def _lookup(self) -> list[Tensor]:
        width = self._beams()
        scores = [-self.draw.random() for _ in range(width)]
        return [
            tensor("paths", self._integers(width, 1728)), tensor("scores", scores, "FP32"),
            self._ticket(), self._excluded(),
        ]  # fmt: skip
