"""A generator that is trained further learns older events again between the new ones."""

from __future__ import annotations

import numpy as np

from tests.training.generator.test_generator_further import (
    NONE,
    SETTINGS,
    loss_of,
    some_model,
    some_older,
    some_users,
)
from training.data.windows import gather
from training.generator.further import FurtherRun, train_further
from training.sharded.world import World


def test_older_events_are_learnt_between_them() -> None:
    newer, catalogue = some_users()
    older = some_older(newer)
    both = newer.and_older(older)
    run = FurtherRun(World(), some_model(catalogue), SETTINGS, catalogue, both, 0)
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
