"""A model of the next item that is trained further learns older events again between the new ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from genrec.catalogue.items import Catalogue
from tests.training.hstu_next.test_hstu_next import ITEMS, SETTINGS, fresh_model, some_timed
from tests.training.hstu_next.test_hstu_next_further import (
    HEAD,
    NOTHING,
    QUICK,
    artifact,
    command,
    loss_of,
    some_users,
    users_of,
)
from training.data.events import read_events
from training.hstu_next.batches import places_in
from training.hstu_next.further import BATCH, REPLAY, FurtherRun, Learnt, load_older, train_further
from training.hstu_next.timed import Timed
from training.sharded.world import World

__all__ = ["artifact"]  # a fixture


def some_older() -> Learnt:
    """Users who do not come back, and all of their events but the first."""
    timed = some_timed()
    later = np.arange(len(timed.rows)) - np.repeat(timed.offsets[:-1], timed.lengths)
    odd = np.repeat(np.arange(len(timed.lengths)) % 2 == 1, timed.lengths)
    return Learnt(timed, np.flatnonzero((later > 0) & odd))


def test_older_ones_are_of_before_the_file_with_their_times(artifact: Path) -> None:
    monday, tuesday = artifact.parent / "monday.csv", artifact.parent / "tuesday.csv"
    monday.write_text(HEAD + "u3,i20,1600000000\nnew,i21,1600000001\nnew,i4,1600000002\n")
    tuesday.write_text(HEAD + "u3,i22,1600000060\n")
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    of, learnt = load_older(artifact, catalogue, read_events(artifact, [monday, tuesday]), 10**6, 0)
    timed, at = some_timed(), 1_600_000_000
    want = [list(zip(timed.rows[a:b].tolist(), timed.times[a:b].tolist(), strict=True))
            for a, b in zip(timed.offsets, timed.offsets[1:], strict=False)]  # fmt: skip
    want[3].append((20, at))
    want.append([(21, at + 1), (4, at + 2)])
    pairs = list(zip(of.rows.tolist(), of.times.tolist(), strict=True))
    found = [pairs[a:b] for a, b in zip(of.offsets, of.offsets[1:], strict=False)]
    assert sorted(found) == sorted(want), "all are asked for, so all are drawn"
    assert learnt.tolist() == sorted({*range(len(pairs))} - {*of.offsets[:-1].tolist()})
    few, some = load_older(artifact, catalogue, read_events(artifact, [monday, tuesday]), 5, 0)
    assert 5 <= len(some) < 5 + max(timed.lengths) and len(few.lengths) < len(found)


def test_new_and_older_ones_are_asked_once_in_small_updates() -> None:
    newer, older = some_users(), some_older()
    both, n = newer.beside(older), len(newer.timed.rows)
    assert both.timed.times.tolist() == [*newer.timed.times, *older.timed.times]
    run, found, mixed = FurtherRun(World(), both, fresh_model(), QUICK, 0), [], 0
    for batch in run.batches(0):
        wanted = places_in(batch)[0][run.asked(batch)] + 1
        users = users_of(both.timed, wanted)
        assert (both.timed.offsets[users] < wanted).all(), "an event behind one of its user"
        found += wanted.tolist()
        mixed += bool((wanted < n).any() and (wanted >= n).any())
        assert (batch[:-1, 1] - batch[:-1, 0]).sum() <= BATCH * QUICK.tokens
    assert sorted(found) == [*newer.events, *(n + older.events)]
    assert mixed > len(run.batches(0)) / 4


def test_what_was_learnt_before_is_not_forgotten() -> None:
    """Users who come back take other items than before: those who do not still take what they took."""
    newer, older, losses = some_users(), some_older(), {}
    rows = newer.timed.rows.copy()
    rows[newer.events] = (rows[newer.events] + ITEMS // 2) % ITEMS
    newer = Learnt(Timed(newer.timed.offsets, rows, newer.timed.times), newer.events)
    for name, again in {"with": older, "without": NOTHING}.items():
        kept, report = train_further(World(), newer, again, fresh_model(), QUICK)
        assert (report["events"], report["replayed"]) == (len(newer.events), len(again.events))
        losses[name] = loss_of(kept, older.timed, older.events)
    assert losses["with"] < losses["without"]


def test_equal_seeds_end_alike() -> None:
    settings = replace(SETTINGS, learning_rate=0.05)
    one, other = (
        train_further(World(), some_users(), some_older(), fresh_model(), settings, 3)[0] for _ in range(2)
    )
    for name, values in one.state_dict().items():
        assert np.array_equal(values.numpy(), other.state_dict()[name].numpy()), name


def test_the_command_says_how_many(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = artifact.parent / "events.csv"
    events.write_text(HEAD + "u3,i20,1600000000\n")
    assert main(command(artifact, events)) == 0
    said = capsys.readouterr().out
    replayed = int(said.split("replayed ")[1].split(",")[0].split()[0])
    assert REPLAY <= replayed < REPLAY + max(some_timed().lengths)
