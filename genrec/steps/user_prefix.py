"""What a ranking reads of a history: the same functions for the ranking and for what is computed ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.catalogue.files import ITEM_TOKENS
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from genrec.errors import ArtifactError, InputError
from genrec.manifest import anew
from genrec.models.config import ModelConfig
from genrec.models.prompt import Start, window_start
from genrec.rank.item_tokens import item_tokens
from genrec.rank.kinds import EVENT_INPUTS
from genrec.rank.options import RankerConfig
from genrec.settings import Settings
from genrec.steps import Tensors, check_tensor
from genrec.steps.known_users import KnownUsers
from genrec.steps.versioned import Versioned


@dataclass(frozen=True)
class RankTable:
    """One catalogue version by row: items' semantic IDs as tokens int32[n, L], what stands for them as candidates
    int32[n, t], and in a history.
    """

    catalogue: Catalogue
    codes: NDArray[np.int32]
    candidates: NDArray[np.int32]
    history: NDArray[np.int32]


class PrefixReader:
    """The catalogue as a ranker reads it, by version, for the step of a name."""

    def __init__(self, settings: Settings, step: str) -> None:
        """Raises ArtifactError."""
        self._artifact = settings.artifact
        self.generator = load_config(settings.artifact, settings.target)
        self.options = RankerConfig.of(settings.artifact, settings.target)
        self.users = KnownUsers(settings.artifact)
        self.loaded = Versioned(settings, step, self._load)

    def _load(self, folder: Path) -> RankTable:
        catalogue = load_catalogue(folder, self.generator)
        catalogue.rows_of([])  # makes its table of ids, which no request should wait for, nor for logarithms
        _ = catalogue.popularity_scores
        own = folder / ITEM_TOKENS
        if (self._artifact / ITEM_TOKENS).exists() and not own.exists():
            raise ArtifactError(own, "is missing; the artifact's items have tokens of their own")
        codes = np.ascontiguousarray(catalogue.codes + np.array(self.generator.code_offsets, np.int32))
        tokens, trained = item_tokens(folder, catalogue, self.generator), self.options.item_tokens
        if tokens.shape[1] != trained:
            problem = f"has {tokens.shape[1]} tokens an item; the ranker was trained on {trained}"
            raise ArtifactError(own, f"{problem}{anew(self._artifact, 'ranker')}")
        return RankTable(catalogue, codes, tokens, tokens if self.options.history == "tokens" else codes)


class UserPrefix(NamedTuple):
    """`rows` int32[n] of the catalogue, oldest first; items that it does not know; oldest items cut off."""

    rows: NDArray[np.int32]
    dropped: int
    cut: int


def read_prefix(
    request: Tensors, catalogue: Catalogue, config: ModelConfig, start: Start = window_start
) -> UserPrefix:
    """What is read of a request's `history`. Raises InputError."""
    history = catalogue.rows_of(check_tensor(request, "history", np.int64))
    known = history[history >= 0]
    kept = known[start(len(known), config.max_history) :]
    return UserPrefix(kept, len(history) - len(known), len(known) - len(kept))


def refuse_events(request: Tensors, names: Sequence[str] = EVENT_INPUTS, reads: str = "items alone") -> None:
    """Raises InputError for what only another ranker reads."""
    if given := [name for name in names if name in request]:
        raise InputError(given[0], "is given", f"nothing: this ranker reads {reads}")


def flat(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """[n, m] as [1, n * m]; one row of zeros for none, as no tensor of Triton's should be empty."""
    return (rows if len(rows) else np.zeros((1, rows.shape[1]), np.int32)).reshape(1, -1)
