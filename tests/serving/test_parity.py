"""Local runtime and Triton: 200 histories, one by one and in batches, give the same answers. About 15 s.

Engines in f32 give them to the bit, whatever the batch; bf16 ones where shapes are the same.

With GENREC_TEST_ARTIFACT in the environment that artifact's own histories are asked of a server of its own; else random
histories of the tiny one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import tritonclient.grpc

from deploy.launcher import running_server
from ensembles.local import LocalRecommender
from genrec.catalogue.items import Catalogue
from genrec.errors import GenrecError
from tests.conftest import BEAM_WIDTH
from tests.serving.wire import Arrays, ask, assert_alike, inputs, tensors, together

pytestmark = pytest.mark.serving
COUNT, TOP_K = 200, 20
OUTPUTS = ("item_ids", "scores", "report")


class World(NamedTuple):
    """A server and, beside it, the artifact it serves; `requests` are what both are asked."""

    grpc_url: str
    local: LocalRecommender
    requests: list[Arrays]
    together: float  # what the company in a batch may do to a score


def real_artifact() -> Path | None:
    named = os.environ.get("GENREC_TEST_ARTIFACT")
    if not named:
        return None
    for file in ("manifest.json", "histories.parquet"):
        assert (Path(named) / file).is_file(), f"{named} has no {file}"
    return Path(named)


def histories_of(artifact: Path, draw: np.random.Generator) -> list[list[int]]:
    """Histories without their last item, some longer than what the model reads; random ones without a file."""
    if (artifact / "histories.parquet").is_file():
        column = pq.read_table(artifact / "histories.parquet", columns=["items"])["items"]
        return [column[int(row)].as_py()[:-1] for row in draw.permutation(len(column))[:COUNT]]
    items = Catalogue.load(artifact / "catalogue.parquet").item_ids
    return [draw.choice(items, int(draw.integers(1, 25))).tolist() for _ in range(COUNT)]


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tiny: Path) -> Iterator[World]:
    artifact = real_artifact()
    draw = np.random.default_rng(7)
    asked_for = Catalogue.load((artifact or tiny) / "catalogue.parquet").item_ids[::3].tolist()
    asked = [
        tensors(history, TOP_K, exclude_history=bool(n % 2), **({"only": asked_for} if n % 5 == 4 else {}))
        for n, history in enumerate(histories_of(artifact or tiny, draw))
    ]
    with LocalRecommender(artifact or tiny, BEAM_WIDTH) as local:
        if artifact is None:
            yield World(request.getfixturevalue("server").grpc_url, local, asked, together(tiny))
        else:
            with running_server(artifact, beam_width=BEAM_WIDTH) as server:
                yield World(server.grpc_url, local, asked, together(artifact))


@pytest.fixture(scope="module")
def alone(world: World) -> list[Arrays]:
    """The local runtime's answers, one request at a time."""
    answers = [world.local.runtime.run([request])[0] for request in world.requests]
    assert not any(isinstance(answer, GenrecError) for answer in answers)
    return answers


def test_triton_one_by_one(world: World, alone: list[Arrays]) -> None:
    """The same steps on the same shapes: equal to the bit."""
    for request, expected in zip(world.requests, alone, strict=True):
        found = ask(tritonclient.grpc, world.grpc_url, request)
        for name in OUTPUTS:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=str(request["history"]))


def test_triton_all_at_once(world: World, alone: list[Arrays]) -> None:
    """Whoever a request shares its batches with, it gets what it gets alone."""
    with (
        tritonclient.grpc.InferenceServerClient(world.grpc_url) as client,
        ThreadPoolExecutor(32) as pool,
    ):
        jobs = [pool.submit(client.infer, "recommend", inputs(tritonclient.grpc, r)) for r in world.requests]
        together = [job.result() for job in jobs]
    for found, expected in zip(together, alone, strict=True):
        assert_alike({name: found.as_numpy(name) for name in OUTPUTS}, expected, world.together)


@pytest.mark.parametrize("size", [7, 32])
def test_local_batches(world: World, alone: list[Arrays], size: int) -> None:
    for start in range(0, COUNT, size):
        batch = world.local.runtime.run(world.requests[start : start + size])
        for found, expected in zip(batch, alone[start : start + size], strict=True):
            assert_alike(found, expected, world.together)
