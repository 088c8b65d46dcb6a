"""What a swap or a delta has replaced goes at once: Python's collector leaves out what a process began with."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genrec.artifact import load_config
from genrec.engine.load_ranker import create_pool
from genrec.engine.pre_infer import PreInferences
from genrec.kv.arena import Arena
from genrec.models.config import ModelConfig
from genrec.pool.pool import Pool
from genrec.rank.hstu import HstuConfig
from genrec.settings import Settings
from genrec.steps import load
from genrec.steps.followed_deltas import FollowedDeltas
from genrec.steps.versioned import Versioned

GENERATOR = ("encode_history", "beam_search", "draft_beam", "validity_lookup", "generate")
# One for all versions and weights
SHARED = (Settings, ModelConfig, HstuConfig, Pool, PreInferences, type)
RANKERS = ("encode_candidates", "encode_prefix")


def parts_of(value: object) -> list[weakref.ref[Any]]:
    """What `value` holds that can be watched: our objects, and arrays of their own."""
    found, todo, seen = [], [value], set[int]()
    while todo:
        each = todo.pop()
        ours = type(each).__module__.startswith("genrec.") or isinstance(each, np.ndarray)
        if id(each) in seen or isinstance(each, SHARED):
            continue
        seen.add(id(each))
        if isinstance(each, tuple | list | dict):
            todo += each.values() if isinstance(each, dict) else each
        elif ours:
            found.append(weakref.ref(each))
            todo += vars(each).values() if hasattr(each, "__dict__") else []
    return found


def followed(step: object) -> list[Versioned[Any] | FollowedDeltas[Any]]:
    """What a step, or what reads for it, follows."""
    held = [*vars(step).values(), *vars(getattr(step, "_reader", step)).values()]
    return [each for each in held if isinstance(each, Versioned | FollowedDeltas)]


@pytest.mark.parametrize(
    ("made", "name"),
    [("tiny", name) for name in GENERATOR]
    + [(of, name) for of in ("tiny_ranker", "tiny_hstu") for name in RANKERS]
    + [("tiny_hstu", "score_candidates")],
)
def test_all_of_a_version_goes_with_it(
    made: str, name: str, tmp_path: Path, request: pytest.FixtureRequest, without_collector: None
) -> None:
    artifact: Path = request.getfixturevalue(made)
    ranks = made != "tiny"
    settings = Settings(
        artifact, tmp_path / "arena", pool=tmp_path / "pool" if ranks else None, pool_fill="none"
    )
    if ranks:
        create_pool(settings, load_config(artifact))
    else:
        Arena.create(settings.arena, slots=4, slot_bytes=1 << 20).close()
    step = load(name, settings)
    watched = 0
    for holds in followed(step):
        if isinstance(holds, Versioned):
            left = [part for each in holds._versions.values() for part in parts_of(each)]
            holds._versions.clear()
        else:
            left, holds.current = parts_of(holds.current), (0, None)
        watched += len(left)
        assert [part() for part in left if part() is not None] == []
    assert watched
    getattr(step, "close", lambda: None)()
