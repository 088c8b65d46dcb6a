"""What an HSTU ranker was made for, which serving reads without torch; and what its tokens are.

There are two kinds. `HstuConfig` is of one of ratings: its candidates are tokens behind the user's. `NextConfig` is of
one of the next item: candidates are compared with the state behind the newest event.

A user's token is a row of int32: own row, rating, feature, seconds, and a row per code of the item's semantic ID, where
0 is none. Features come first, then events, oldest first. U tokens, f of them features.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.errors import InputError
from genrec.files import read_json
from genrec.json_fields import made_of

CONFIG, WEIGHTS = "hstu.json", "hstu.safetensors"
NEXT_CONFIG, NEXT_WEIGHTS = "hstu_next.json", "hstu_next.safetensors"  # of one trained for the next item
EXPORTED, NEXT_EXPORTED = "hstu_weights.safetensors", "hstu_next_weights.safetensors"
FEATURES = "hstu_features.json"  # which number is which value of which of a user's features, for who asks
USER_GRAPH, RANK_GRAPH = "hstu_user", "hstu_rank"
NEXT_USER_GRAPH, NEXT_RANK_GRAPH = "hstu_next_user", "hstu_next_rank"
LIMIT = 2**31  # of a position, and of seconds: differences of two must be int32
MOST_FEATURES = 16  # of a user
MOST_EXPERTS = 64
# Columns of a user's token; codes fill the last and all behind it.
ITEM, RATING, FEATURE, TIME, CODES = range(5)
WAIT = RATING  # of a model of the next item, which reads no ratings: seconds until the next event
Ints = NDArray[np.int32]


class HstuKind(NamedTuple):
    """What a kind is called, and its files: `config` in `model/`; in `onnx/` its `graphs`, a user's and the ranking's.

    `exported` has their weights. `tables` of them are large and looked up by row: they stay inputs of a compiled
    graph. All else becomes a part of it.
    """

    name: str
    config: str
    graphs: tuple[str, str]
    exported: str
    tables: tuple[str, ...]
    refuses: tuple[str, ...] = ()  # inputs of requests that the other kind reads
    deltas: bool = True  # whether a server takes in changed weights


class Query(NamedTuple):
    """What a ranking computes behind a user's prefix: int64 inputs of the graph, tokens first, and their seconds."""

    rows: list[NDArray[np.int64]]
    time: int


@dataclass(frozen=True)
class HstuConfig:
    """Shape of the model: `features` are the sizes of all user features together, `items` those of the catalogue.

    Ratings are 1 to `ratings`. A task is whether one is at least so high: the click, and rarer ones behind it.
    """

    kind: ClassVar[HstuKind] = HstuKind(
        "hstu", CONFIG, (USER_GRAPH, RANK_GRAPH), EXPORTED,
        ("of_item.weight", "of_code.weight", "of_rating.weight", "of_feature.weight"),
    )  # fmt: skip
    items: int
    codebook_sizes: tuple[int, ...]
    features: int
    max_history: int = 200  # events, and candidates too while it trains
    hidden_size: int = 64
    layers: int = 3
    heads: int = 2
    times: int = 64  # buckets: of any time there is
    dropout: float = 0.2
    ratings: int = 5
    tasks: tuple[int, ...] = (4, 5)
    experts: int = 0  # that its tasks share; 0: one MLP for all tasks

    def __post_init__(self) -> None:
        check_experts(self.experts)

    @property
    def outputs(self) -> int:
        """Numbers per candidate."""
        return len(self.tasks)

    @property
    def code_starts(self) -> NDArray[np.int32]:
        """int32[L]: the row of every level's first code, behind row 0, which is none."""
        return np.cumsum((1, *self.codebook_sizes[:-1]), dtype=np.int32)

    @property
    def code_rows(self) -> int:
        """Rows of all codes, and of none."""
        return 1 + sum(self.codebook_sizes)

    @property
    def token_size(self) -> int:
        """Numbers of a user's token."""
        return CODES + len(self.codebook_sizes)

    @property
    def longest(self) -> int:
        """Tokens of a user, at most."""
        return MOST_FEATURES + self.max_history

    def prefix(self, tokens: Ints) -> Ints:
        """Of a user's tokens int32[U, token_size] those whose KV no ranking changes."""
        return tokens

    def read(self, tokens: Ints) -> NDArray[np.int64]:
        """int64[n, 3 + L]: what the graph of users reads of tokens of a prefix."""
        return np.concatenate((tokens[:, : FEATURE + 1], tokens[:, CODES:]), 1).astype(np.int64)

    def query(self, tokens: Ints, candidates: Ints, now: int) -> Query:
        """Candidates int32[C, 1 + L] asked for at `now`: they are tokens."""
        return Query([candidates.astype(np.int64)], now)

    def save(self, path: Path) -> None:
        """Write the file."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> HstuConfig:
        """Read the file. Raises ArtifactError."""
        return cls.from_json(read_json(path), path)

    @classmethod
    def from_json(cls, said: Any, path: Path) -> HstuConfig:
        """What the file `path` said, as JSON has it. Raises ArtifactError."""
        return made_of(cls, said, path)


@dataclass(frozen=True)
class NextConfig(HstuConfig):
    """Of a model of the next item, which reads no ratings and no features.

    A token is told when the next event was, or for the newest when it is asked. So that one alone depends on `now`, and
    all others are the prefix.
    """

    kind: ClassVar[HstuKind] = HstuKind(
        "hstu-next", NEXT_CONFIG, (NEXT_USER_GRAPH, NEXT_RANK_GRAPH), NEXT_EXPORTED,
        ("of_item.weight", "of_code.weight"), refuses=("ratings", "features"), deltas=False,
    )  # fmt: skip
    features: int = 0
    temperature: float = 0.05  # of scores
    ratings: int = 0
    tasks: tuple[int, ...] = ()

    @property
    def outputs(self) -> int:
        """One score."""
        return 1

    def prefix(self, tokens: Ints) -> Ints:
        """All but the newest, with their WAIT."""
        known = tokens[:-1].copy()
        known[:, WAIT] = np.diff(tokens[:, TIME])
        return known

    def read(self, tokens: Ints) -> NDArray[np.int64]:
        """int64[n, 2 + L]: item, bucket of WAIT, codes."""
        waits = time_bucket(tokens[:, WAIT], self.times)
        return np.concatenate((tokens[:, [ITEM]], waits[:, None], tokens[:, CODES:]), 1).astype(np.int64)

    def query(self, tokens: Ints, candidates: Ints, now: int) -> Query:
        """The newest event, which waits until `now`; candidates are no tokens."""
        newest = tokens[-1:].copy()
        newest[:, WAIT] = now - newest[:, TIME]
        return Query([self.read(newest), candidates.astype(np.int64)], int(newest[0, TIME]))


def clock_of(first: Any, now: Any) -> Any:
    """The second from which those of a user's tokens count: of his `first` event; but LIMIT - 1 before `now` at most.

    What was earlier is taken to be of that second: differences that long are in the last buckets. Integers or arrays.
    """
    return np.maximum(first, now - (LIMIT - 1))


def check_experts(experts: int) -> None:
    """Raises InputError for a number that no model has."""
    if type(experts) is not int or not 0 <= experts <= MOST_EXPERTS:
        raise InputError("experts", f"is {experts!r}", f"a whole number, 0 to {MOST_EXPERTS}")


def time_bucket(difference: Ints, times: int) -> NDArray[np.int32]:
    """As `genrec.nn.hstu_layout.time_bucket`, by the bits of a float32 from 1 on: exponent, and highest of fraction."""
    size = np.maximum(np.abs(difference), 1).astype(np.float32)
    return np.minimum((size.view(np.int32) >> 22) - (127 << 1), times - 1)
