"""Prompts of users who come again, and steps with and without a pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from genrec import metrics, steps
from genrec.artifact import load_config
from genrec.engine.load_ranker import create_pool
from genrec.errors import GenrecError
from genrec.settings import SPAN, Settings
from genrec.steps import Tensors

MOST, TOP_K, USERS = 8, 5, 4  # items of a history at most
Start = Callable[..., tuple[Any, Settings]]


@contextmanager
def starting(name: str, folder: Path) -> Iterator[Start]:
    """What loads the step `name` of an artifact, with a pool of so many MB, or without one for 0."""
    started = []

    def load(
        artifact: Path, target: str = "openvino", megabytes: int = 8, **more: Any
    ) -> tuple[Any, Settings]:
        pool = folder / f"pool{len(started)}" if megabytes else None
        given = {"pool_user_mb": megabytes, "pool": pool} | more
        settings = Settings(artifact, folder, 16, target, **given)
        if pool:
            create_pool(settings, load_config(artifact))
        started.append(steps.load(name, settings))
        return started[-1], settings

    yield load
    for step in started:
        if hasattr(step, "close"):
            step.close()


def prompt(artifact: Path, items: int, user: int | None, seed: int = 0, **ticket: int) -> Tensors:
    """Of a user with so many items, the same ones for the same seed; `user` None: nobody is named."""
    config, draw = load_config(artifact), np.random.default_rng(seed)
    sizes, offsets = config.codebook_sizes, config.code_offsets
    rows = np.column_stack([draw.integers(0, size, MOST) for size in sizes])[:items] + np.array(offsets)
    tokens = np.zeros((1, -(-rows.size // SPAN) * SPAN), np.int32)
    tokens[0, : rows.size] = rows.reshape(-1)
    return {
        "tokens": tokens[:, : config.max_prompt],
        "ticket": np.array([[TOP_K, rows.size, ticket.get("deadline_ns", 0), 0, 0, 0]]),
        "excluded": np.array([[-1]], np.int32),
        "owner": np.array([[user is not None, user or 0, time.monotonic_ns()]]),
    }


def equal(got: Any, want: Any) -> None:
    """Two answers."""
    assert not isinstance(got, GenrecError) and not isinstance(want, GenrecError), (got, want)
    # Of others a search may leave out any
    best = [np.argsort(-each["scores"][0])[:TOP_K] for each in (got, want)]
    paths, scores = (
        [each[name][0][top] for each, top in zip((got, want), best, strict=True)]
        for name in ("paths", "scores")
    )
    np.testing.assert_array_equal(*paths)
    np.testing.assert_allclose(*scores, rtol=0, atol=1e-4)


def reused() -> float:
    """Tokens so far."""
    return metrics.GENERATE_TOKENS.value(kind="reused")


def batches(artifact: Path, seed: int, least: int) -> Iterator[list[Tensors]]:
    """Random ones: histories of `least` items or more grow, come again, and are another's or nobody's."""
    draw = np.random.default_rng(seed)
    for _ in range(12):
        yield [
            prompt(
                artifact, int(draw.integers(least, MOST + 1)), user, int(draw.integers(2)) + 10 * (user or 0)
            )
            for user in draw.choice([None, *range(USERS)], 5).tolist()
        ]


def spoilt(tensors: Tensors, draw: np.random.Generator) -> Tensors:
    """With one of them gone, of another type, length, or number of rows, or with another number in it."""
    name = draw.choice([*tensors])
    given = tensors[name]
    odd = given.copy()
    if odd.size:
        odd[0, draw.integers(odd.size)] = draw.choice([-1, 0, 1, 2, 7, 2**31 - 1, -(2**31)])
    ways = (
        None, given.astype(np.float32), given[:, :-1], np.hstack((given, given)), np.vstack((given, given)), given[0],
        odd, odd, odd,
    )  # fmt: skip
    other = ways[draw.integers(len(ways))]
    rest = {each: value for each, value in tensors.items() if each != name}
    return rest if other is None else {**rest, name: other}
