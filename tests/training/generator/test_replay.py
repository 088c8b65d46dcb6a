"""A generator that is trained further learns older events again between the new ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from tests.training.generator.test_generator_further import (
    HEAD,
    NONE,
    SETTINGS,
    artifact,  # noqa: F401  (a fixture)
    loss_of,
    some_model,
    some_older,
    some_users,
)
from training.data import tables
from training.data.windows import gather
from training.generator.further import GeneratorRun, train_further
from training.sharded.world import World


def test_older_events_are_learnt_between_them() -> None:
    newer, catalogue = some_users()
    older = some_older(newer)
    both = newer.and_older(older)
    run = GeneratorRun(World(), some_model(catalogue), SETTINGS, catalogue, both, 0)
    found = [gather(np.arange(len(both.rows)), batch)[run.asked(batch)] for batch in run.batches(0)]
    assert sorted(np.concatenate(found).tolist()) == both.learnt.tolist()
    assert both.rows[both.learnt].tolist() == [*newer.rows[newer.learnt], *older.rows[older.learnt]]
    old = both.learnt >= len(newer.rows)
    mixed = [
        np.isin(each, both.learnt[old]).any() and np.isin(each, both.learnt[~old]).any() for each in found
    ]
    assert sum(mixed) > len(found) / 2
    model, losses = some_model(catalogue), {}
    for name, of in {"with": older, "without": NONE}.items():
        kept, report = train_further(World(), some_model(catalogue), catalogue, newer, of, SETTINGS)
        assert (report["events"], report["replayed"]) == (len(newer.learnt), len(of.learnt))
        losses[name] = loss_of(kept, catalogue, older)
    assert losses["with"] < losses["without"] and losses["with"] < loss_of(model, catalogue, older)


def test_files_are_read_once(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """They serve the new events and those that are learnt again; and the option may be given for each."""
    days, read, blocks = ["monday.csv", "tuesday.csv"], [], tables.read_blocks
    for number, day in enumerate(days):
        (artifact.parent / day).write_text(f"{HEAD}u3,i20,{100 + number}\nu4,i21,{100 + number}\n")
    monkeypatch.setattr(
        tables, "read_blocks", lambda path, **more: [read.append(path.name), *blocks(path, **more)][1:]
    )
    events = [f"--events={artifact.parent / day}" for day in days]
    assert main(["train", str(artifact), *events]) == 0
    assert read == days
