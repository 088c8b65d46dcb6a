"""A generator, a ranker and a draft head on several ranks, ended and taken up: they end where one process does."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cli.chain import How, make_ranker
from genrec.catalogue.items import Catalogue
from genrec.draft.options import DraftConfig
from genrec.errors import InputError
from genrec.nn.checkpoint import load_generator
from tests.training.generator.test_draft import QUICK as QUICK_DRAFT
from tests.training.generator.test_train import TINY, data
from tests.training.hstu.test_hstu_ranks import assert_equal
from tests.training.ranker.test_ranker import QUICK, ring_artifact
from tests.training.ranks import SLOW_S, impatient
from training.data.histories import Histories
from training.generator.draft import DraftRun, train_draft
from training.generator.run import GeneratorRun
from training.generator.train import fresh_generator, train_generator
from training.launch import on_ranks
from training.ranker import candidates as rank_candidates
from training.ranker import train as of_ranker
from training.ranker.run import RankerRun
from training.ranker.train import fresh_ranker, open_places, train_ranker
from training.sharded.world import RankLost, World

LAST_STEP = 5  # before a rank is killed
TASKS = {"generator": GeneratorRun, "ranker": RankerRun, "draft": DraftRun, "draft and generator": DraftRun}


def trained(
    world: World, what: str, folder: Path, dropout: float = 0.0, killed: int | None = None
) -> dict[str, Any]:
    """Weights and the log, of an artifact beside `folder`; rank `killed` dies by SIGKILL after some steps."""
    task: Any = TASKS[what]
    if world.rank == killed:
        step = task.step

        def last_step(run: Any, *arguments: Any) -> float:
            if run.steps == LAST_STEP:
                os.kill(os.getpid(), signal.SIGKILL)
            return float(step(run, *arguments))

        task.step = last_step  # of this process alone, which dies
    best: Any
    artifact = folder.parent / "artifact"
    if what == "generator":
        settings = replace(TINY, dropout=dropout)
        best, report = train_generator(world, *data(), settings, folder, save_every_s=0.0)
    elif what == "ranker":
        places, candidates = open_places(artifact, QUICK.places)
        fresh = fresh_ranker(artifact, "both", True, dropout, places.tokens.shape[1], 0)
        best, report = train_ranker(world, fresh, places, candidates, QUICK, folder, save_every_s=0.0)
    else:
        given = Histories.load(artifact / "histories.parquet"), Catalogue.load(artifact / "catalogue.parquet")
        model, joint = load_generator(artifact / "model"), what != "draft"
        quick = replace(QUICK_DRAFT, joint=True, dropout=dropout) if joint else QUICK_DRAFT
        *both, report = train_draft(world, *given, model, quick, DraftConfig(), folder, save_every_s=0.0)
        best = nn.ModuleList(both)
    return {"weights": {name: each.numpy() for name, each in best.state_dict().items()}, **report}


def test_ranks_make_candidates_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is done between another's last byte and its renaming, as two that torchrun started may be."""
    artifact, save = ring_artifact(tmp_path), rank_candidates.write_tensors
    other: list[dict[str, Any]] = []

    def overtaken(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        if not other:
            other.append({})
            other[0] |= rank_candidates.load_candidates(artifact, 2)

    monkeypatch.setattr(rank_candidates, "write_tensors", overtaken)
    mine = rank_candidates.load_candidates(artifact, 2)
    assert (mine["test"].rows == other[0]["test"].rows).all()
    assert [path.name for path in (artifact / "training").iterdir()] == [rank_candidates.FILE_NAME]


def validated(world: World, slow: int) -> float:
    """Rank `slow` answers its users late."""
    histories, catalogue = data()
    model = fresh_generator(TINY, catalogue, 0, [])
    run = GeneratorRun(impatient(world), model, TINY, catalogue, histories, 0)
    answer = run.recommend

    def late(asked: list[np.ndarray], k: int, remove_seen: bool) -> np.ndarray:
        time.sleep(SLOW_S + 2)
        return answer(asked, k, remove_seen)

    if world.rank == slow:
        run.recommend = late
    return run.validate()[0]


@pytest.mark.long
def test_a_rank_that_validates_for_longer_is_waited_for() -> None:
    assert on_ranks(2, validated, 1, threads=2) == pytest.approx(on_ranks(2, validated, -1, threads=2))


def test_what_no_ranker_has_is_told_before_candidates_are_made(tmp_path: Path) -> None:
    artifact = ring_artifact(tmp_path)
    with pytest.raises(InputError, match="layers: is 9 "):
        make_ranker(artifact, how=How(ranks=2, threads=2), changes={"layers": 9})
    assert not (artifact / "training").exists()


def test_candidates_of_several_ranks_take_the_threads_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made before the ranks start, by a process that has a thread per core of its own."""
    seen, before = [], torch.get_num_threads()

    def noted(*_: object) -> None:
        seen.append(torch.get_num_threads())
        raise KeyboardInterrupt

    monkeypatch.setattr(of_ranker, "open_places", noted)
    torch.set_num_threads(4)
    try:
        with pytest.raises(KeyboardInterrupt):
            make_ranker(ring_artifact(tmp_path), how=How(ranks=2, threads=3))
    finally:
        torch.set_num_threads(before)
    assert seen == [3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a ring's artifact in it, whose candidates are made."""
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    open_places(ring_artifact(artifact), QUICK.places)
    return tmp_path


@pytest.mark.parametrize(
    "what",
    ["generator", *(pytest.param(each, marks=pytest.mark.long) for each in TASKS if each != "generator")],
)
def test_two_ranks_end_where_one_ends(folder: Path, what: str) -> None:
    alone = trained(World(), what, folder / "alone")
    two = on_ranks(2, trained, what, folder / "two", threads=2)
    assert two["ranks"] == 2 and alone["resumed_after_step"] == two["resumed_after_step"] == 0
    assert_equal(two, alone, 2e-4)


@pytest.mark.long
@pytest.mark.parametrize("what", TASKS)
def test_killed_and_taken_up_nothing_differs(folder: Path, what: str) -> None:
    """With dropout, whose chance is part of the checkpoint."""
    whole = on_ranks(2, trained, what, folder / "whole", 0.2, threads=2)
    with pytest.raises(
        RankLost, match=r"rank 1 of the training died of signal 9 \(SIGKILL\), .* memory runs out"
    ):
        on_ranks(2, trained, what, folder / "killed", 0.2, 1, threads=2)
    rest = on_ranks(2, trained, what, folder / "killed", 0.2, threads=2)
    assert rest["resumed_after_step"] == LAST_STEP
    assert_equal(rest, whole, 0.0)
