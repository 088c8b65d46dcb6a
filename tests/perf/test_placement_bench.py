"""The computed benchmark of placement: what it counts, by hand on small clusters."""

import json

import numpy as np
import pytest

from cli.main import main
from genrec.nodes.placement import EVERYWHERE, place
from perf.kit.hosts import why_none
from perf.rank import placement
from perf.rank.placement import held, popularity
from tests.nodes.test_mooncake import why_not


def test_the_hottest_tenth_draws_nine_tenths():
    accesses = popularity(10_000)
    assert accesses.sum() == pytest.approx(1) and (np.diff(accesses) <= 0).all()
    assert accesses[:1000].sum() == pytest.approx(0.9, abs=1e-6)


def test_what_is_elsewhere_is_remote_but_for_one_node(monkeypatch):
    accesses = np.array([0.4, 0.3, 0.2, 0.1])
    monkeypatch.setattr(placement, "NODE_BYTES", 100.0)
    monkeypatch.setattr(placement, "LEFT_BYTES", 0.0)
    assert held(place(accesses, 2, 0.0), accesses, 2, 10) == placement.Held(40, pytest.approx(1.0), 0.0)
    assert held(place(accesses, 2, 1.0), accesses, 2, 10) == placement.Held(
        20, pytest.approx(1.0), pytest.approx(0.5)
    )
    assert held(place(accesses, 2, 0.3), accesses, 2, 10) == placement.Held(
        30, pytest.approx(1.0), pytest.approx(0.15)
    )


def test_what_has_no_room_is_nowhere_and_that_is_the_coldest(monkeypatch):
    accesses = np.array([0.4, 0.3, 0.2, 0.1])
    monkeypatch.setattr(placement, "NODE_BYTES", 25.0)
    monkeypatch.setattr(placement, "LEFT_BYTES", 5.0)
    assert held(np.full(4, EVERYWHERE), accesses, 2, 10) == placement.Held(20, pytest.approx(0.7), 0.0)
    one_copied = held(place(accesses, 2, 0.6), accesses, 2, 10)
    assert one_copied == placement.Held(20, pytest.approx(0.9), pytest.approx(0.25))


def test_the_command_compares_all_at_three_bandwidths(capsys):
    assert main(["bench", "placement", "--requests", "300", "--items", "2000"]) == 0
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert result["computed_not_measured"] and result["of_policy"] == "split"
    for of in result["policies"].values():
        assert list(of) == ["1", "10", "100"]
        hashed = [of[gbit_s]["hash"]["rate"] for gbit_s in of]
        assert hashed == sorted(hashed) and len({of[gbit_s]["replicate"]["rate"] for gbit_s in of}) == 1
        for placements in of.values():
            best = placements["best tried"]["rate"]
            assert best >= max(placements["hash"]["rate"], placements["replicate"]["rate"])
    slow = result["policies"]["split"]["1"]
    assert result["hrcs_over_hash"] == pytest.approx(slow["hrcs"]["rate"] / slow["hash"]["rate"])
    assert main(["bench", "placement", "--policies", "lru"]) != 0
    assert main(["bench", "placement", "--nodes", "1"]) != 0


@pytest.mark.skipif(bool(why_not() or why_none()), reason=why_not() or why_none())
def test_the_same_runs_on_links(tmp_path, capsys):
    """A little world: what it must say, and that every answer was right."""
    small = ["--scale", "4000", "--requests", "200", "--nodes", "2", "--model", "384-1"]
    given = ["--gbit-s", "5", "--artifact", str(tmp_path / "mock"), *small]
    assert main(["bench", "placement_links", *given]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    (link,) = found["links"].values()
    assert link["equal_answers"] and link["counted"] > 30
    assert link["replicate"]["copied"] == 1 and link["hash"]["copied"] == 0
    assert link["replicate"]["items_reused"] == 1, "all items are in the pool"
    assert link["hash"]["items_reused"] > 0, "nothing came from the store"
    assert found["hrcs_over_hash"] > 0 and found["hrcs_over_replicate"] > 0
