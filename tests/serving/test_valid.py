"""Every answer is of items, distinct, enough and in order: 2,000 random requests to the server, and every L, T and BW.

About 20 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from build.groups import group_items
from deploy.launcher import RunningServer
from deploy.switch import switch
from ensembles.local import LocalRecommender
from genrec.artifact import load_config
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from tests.conftest import BEAM_WIDTH
from tests.oracles.twin import twin_artifact
from tests.serving.wire import Arrays, inputs, tensors

COUNT, WORKERS = 2000, 16
MODEL, POPULARITY = 0, 1
Members = dict[int, frozenset[int]]  # the items of a group, by its number


def random_request(
    draw: np.random.Generator, items: np.ndarray, width: int, groups: Members | None = None
) -> Arrays:
    """A history of any length, with repeats and with items nobody knows; top_k up to what the server allows."""
    length = int(draw.choice([0, 1, 2, 5, 16, 17, 60]))
    pool = items[: max(int(draw.integers(len(items))), 1)]  # small pools give repeats
    history = draw.choice(pool, length)
    unknown = draw.random(length) < draw.choice([0.0, 0.3, 1.0], p=[0.6, 0.3, 0.1])
    history[unknown] = draw.choice([-1, 0, 5, 2**63 - 1, -(2**63)], int(unknown.sum()))
    top_k = int(draw.integers(1, min(width, len(items)) + 1))
    given: dict[str, object] = {"exclude_history": bool(draw.random() < 0.5)} if draw.random() < 0.7 else {}
    for name in ("exclude", "only"):
        if draw.random() < 0.3:
            some = draw.choice(items, int(draw.choice([0, 1, 5, len(items) // 2, len(items)])))
            given[name] = [*some.tolist(), -5]
    for name in ("exclude_groups", "only_groups"):
        if groups and draw.random() < 0.3:
            given[name] = draw.choice(list(groups), int(draw.integers(3))).tolist()
    return tensors(history.tolist(), top_k, **given)


def check(request: Arrays, answer: Arrays, items: frozenset[int], groups: Members | None = None) -> None:
    """Valid, distinct, enough, ordered, and nothing of what was excluded."""
    history = request["history"][0].tolist()
    found, scores, report = answer["item_ids"][0], answer["scores"][0], answer["report"][0]
    known = [item for item in history if item in items]
    left = items & set(request["only"][0].tolist()) if "only" in request else items
    left -= set(known) if request.get("exclude_history", np.zeros(1)).any() else set()
    left -= set(request["exclude"][0].tolist()) if "exclude" in request else set()
    for name in {"exclude_groups", "only_groups"} & request.keys():
        of = {item for group in request[name][0].tolist() for item in (groups or {})[group]}
        left = left & of if name == "only_groups" else left - of
    assert set(found.tolist()) <= left
    assert len(set(found.tolist())) == len(found)
    assert len(found) == len(scores) == min(int(request["top_k"].item()), len(left))
    assert (np.diff(scores) <= 0).all()
    asks_model = bool(known) and bool(left)
    assert report[0] == (MODEL if asks_model else POPULARITY)
    assert report[1] == len(history) - len(known)
    if asks_model:
        assert np.isfinite(scores).all() and (scores <= 1e-5).all()


@pytest.mark.serving
def test_two_thousand_random_histories(server: RunningServer, tiny: Path) -> None:
    items = Catalogue.load(tiny / "catalogue.parquet").item_ids
    draw = np.random.default_rng(11)
    requests = [random_request(draw, items, BEAM_WIDTH) for _ in range(COUNT)]
    waiting = deque(enumerate(requests))
    answers: list[Arrays] = [{} for _ in requests]

    def work() -> None:
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            while waiting:
                place, request = waiting.popleft()
                result = client.infer("recommend", inputs(tritonclient.grpc, request))
                answers[place] = {n: result.as_numpy(n) for n in ("item_ids", "scores", "report")}

    with ThreadPoolExecutor(WORKERS) as pool:
        for job in [pool.submit(work) for _ in range(WORKERS)]:
            job.result()
    for request, answer in zip(requests, answers, strict=True):
        check(request, answer, frozenset(items.tolist()))
    assert sum(int(answer["report"][0, 0] == MODEL) for answer in answers) > COUNT // 2


SHAPES = {(50,): 40, (9, 4): 30, (3, 300): 500, (12, 12, 12): 300, (3, 4, 5, 6): 200, (2, 2, 2, 2): 40}


@pytest.fixture(scope="module", params=SHAPES, ids=lambda sizes: "T" + "x".join(map(str, sizes)))
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Catalogues of L = 1, 2, 3 and 4, sparse and full, one with far more items than semantic IDs."""
    return twin_artifact(tmp_path_factory.mktemp("valid") / "artifact", request.param, SHAPES[request.param])


@pytest.fixture(scope="module")
def groups(artifact: Path) -> Members:
    """In a version of their own, that is served: one item, half of them, all of them."""
    items = load_catalogue(artifact, load_config(artifact)).item_ids
    some = np.random.default_rng(3).permutation(items)
    members = {1: some[:1], 2: some[: len(some) // 2], 9: some}
    file = artifact / "groups.csv"
    file.write_text("group\n" + "".join(f"{group}\n" * len(rows) for group, rows in members.items()))
    switch(artifact, group_items(artifact, file, np.concatenate(list(members.values()))))
    return {group: frozenset(rows.tolist()) for group, rows in members.items()}


@pytest.mark.parametrize("width", [1, 7, 64, 1024])
def test_every_shape_of_catalogue_and_beam_width(artifact: Path, groups: Members, width: int) -> None:
    """In the local runtime with the twin engine: a server for each would take minutes."""
    items = load_catalogue(artifact, load_config(artifact)).item_ids
    draw = np.random.default_rng(width)
    requests = [random_request(draw, items, width, groups) for _ in range(16)]
    with LocalRecommender(artifact, width, "twin", slots=16) as local:
        for request, answer in zip(requests, local.runtime.run(requests), strict=True):
            assert isinstance(answer, dict), answer
            check(request, answer, frozenset(items.tolist()), groups)


def test_all_items_or_all_but_a_few_excluded(artifact: Path) -> None:
    """Beams never starve: what is left is found, however little that is."""
    items = load_catalogue(artifact, load_config(artifact)).item_ids
    with LocalRecommender(artifact, 8, "twin", slots=4) as local:
        for left in (0, 1, 3):
            rest = items[left:].tolist()
            for wish in ({"exclude_history": True}, {"exclude": rest}, {"only": items[:left].tolist()}):
                request = tensors(rest, min(8, len(items)), **wish)
                (answer,) = local.runtime.run([request])
                assert isinstance(answer, dict), answer
                check(request, answer, frozenset(items.tolist()))
