"""Candidates ranked by the generator alone, as peers rank them: by the likelihood of their codes, behind a kept prompt.

It is what `recommend` does where `only` names the candidates and as many answers are wanted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec.artifact import load_config
from genrec.catalogue.answerable import THESE_ALONE
from genrec.catalogue.blocked import ways_to
from genrec.catalogue.indices import load_validity
from genrec.catalogue.validity import ValidityIndex
from genrec.engine.kept_prompts import KeptPrompts
from genrec.engine.load import load_executors
from genrec.engine.load_ranker import create_pool
from genrec.pool.owner import Owner
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams
from genrec.search.undecided import undecided
from genrec.settings import Settings


def by_likelihood(artifact: Path, folder: Path, tokens: Any, rows: NDArray[np.int32]) -> Callable[[], Beams]:
    """Ranks `rows` of the catalogue for a user with the prompt int32[S], whose KV goes to a pool in `folder` now."""
    config = load_config(artifact)
    settings = Settings(artifact, artifact, len(rows), pool=folder)
    create_pool(settings, config)
    executor, index = load_executors(settings, config)[0], load_validity(artifact, config)
    kept = KeptPrompts.of(settings, config, executor.resumes)
    assert kept, "the artifact has a ranker that reads KV of the generator's prompts"
    prompt, lengths = tokens[None].astype(np.int64), np.array([len(tokens)])
    owner = Owner(True, 1, time.monotonic_ns())
    only = np.concatenate((np.array([THESE_ALONE], np.int32), rows))

    def ask() -> Beams:
        constraint = Constraint(index, index.blocked(only), len(rows))
        visit = kept.visit(owner, tokens)
        try:
            pasts = [kept.past(visit, len(tokens))] if visit.found else []
            keep = partial(kept.keep, prompt, lengths, [visit])
            (beams,) = executor.answers(prompt, lengths, [constraint], prompts=keep, pasts=pasts)
        finally:
            kept.release(visit)
        return beams

    ask()
    return ask


def beams_scored(index: ValidityIndex, rows: NDArray[np.int32]) -> list[float]:
    """Beams that the passes of the levels 2 to L cannot do without: those that lead to `rows` and to other items."""
    nodes = ways_to(np.sort(index.row_leaf[rows]), index.first_child)
    return [float(len(undecided(index, level, at))) for level, at in enumerate(nodes[:-1], 1)]
