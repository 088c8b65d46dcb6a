"""The benchmarks of training: groups of ranks, what is counted, and how sequences are shared out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import psutil
import pytest

from cli.main import main
from genrec.errors import InputError
from perf.kit.tables import TABLES
from perf.peers.refusal import Refusal
from perf.training import embedding, training
from perf.training.group import RankGroup, python_for
from perf.training.workers.lookups import FEATURES, batches


def test_a_missing_environment_and_a_worker_that_fails_are_refusals(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="torchrec is not installed"):
        python_for("torchrec", tmp_path, install=False)
    with pytest.raises(Refusal, match="rank 0: FileNotFoundError"):
        RankGroup(python_for("", tmp_path, install=False), "worker_none.py", 1)


SMALL = {"dim": 4, "vocabulary": 100, "sequences": 2, "steps": 1}


def test_a_rank_that_has_died_is_a_refusal(tmp_path: Path) -> None:
    with RankGroup(python_for("", tmp_path, install=False), "worker_ours.py", 1, **SMALL) as group:
        (rank,) = group._processes
        rank.kill()
        rank.wait()
        with pytest.raises(Refusal, match="rank 0 died: "):
            group.ask(do="train", first=0, last=1)


def test_who_is_interrupted_while_ranks_start_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: RankGroup) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RankGroup, "_answers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RankGroup(python_for("", tmp_path, install=False), "worker_ours.py", 2, **SMALL)
    left = psutil.Process().children()  # of other tests some have ended just now
    alive = [each for each in left if each.status() != psutil.STATUS_ZOMBIE]
    assert not [each for each in alive if "worker_ours.py" in " ".join(each.cmdline())]


@pytest.mark.long
def test_ranks_count_what_they_send_and_agree_with_one_process(tmp_path: Path) -> None:
    asked = training.arguments(["--quick"])
    found = training.savings(asked, 2)
    assert found["none"]["ids_asked"] == found["none"]["rows_read"]
    distinct = {
        (name, i) for each in (0, 1) for name, (ids, _) in batches(10_000, 8, 1, each)[0].items() for i in ids
    }
    assert (
        found["both"]["rows_read"] == len(distinct) < found["first"]["rows_read"] < found["none"]["rows_read"]
    )
    assert training.distance_to_one_process(asked) <= training.TOLERANCE


@pytest.mark.parametrize("options", [["--dims", "64"], ["--dims", "512,32"], ["--quick"]])
def test_a_result_that_would_leave_gaps_in_the_tables_is_not_measured_to_be_kept(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begin(_: object) -> None:
        raise InputError("run", "begins", "nothing else")

    monkeypatch.setattr(training.report, "begin", begin)
    assert main(["bench", "training", *options, "--save"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"dims: leave out (64|512), which the tables .* --label for a result of its own", said)
    for more in ([], ["--save", "--label", "small"]):
        assert main(["bench", "training", *options, *more]) == 2
        assert "run: begins" in capsys.readouterr().err


def test_what_is_kept_has_what_the_tables_have() -> None:
    told = {each.path for each in TABLES["training"] if each.path.startswith("over_torchrec")}
    assert told == {f"over_torchrec_dim{dim}" for dim in training.TOLD}


def test_vectors_that_are_no_numbers_are_not_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        def __init__(self, _python: Path, _script: str, ranks: int, **_: object) -> None:
            self.vectors = {"0": [1.0], "1": [float("nan") if ranks > 1 else 2.0]}

        def __enter__(self) -> Group:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, do: str, **_: object) -> list[dict[str, list[float]]]:
            return [self.vectors] if do == "read" else []

    monkeypatch.setattr(training, "RankGroup", Group)
    assert not training.distance_to_one_process(training.arguments(["--quick"])) <= training.TOLERANCE


def test_batches_are_the_same_for_everyone_and_a_sequence_has_one_user() -> None:
    first, again = batches(1000, 5, 2, 3), batches(1000, 5, 2, 3)
    for one, other in zip(first, again, strict=True):
        assert set(one) == set(FEATURES) and (one["user"][1] == 1).all()
        for name, (ids, lengths) in one.items():
            assert len(ids) == lengths.sum() and ids.max() < (1000 if name == "item" else 100)
            assert np.array_equal(ids, other[name][0])


def test_balance_is_computed_by_the_trainers_own_code() -> None:
    found = training.balance(8, 32, 3)
    ways = [
        found[name]["busy"]
        for name in ("fixed number of sequences", "Algorithm 1, by tokens", "exchange, by cost")
    ]
    assert ways == sorted(ways) and ways[0] < 0.9 and ways[2] > 0.99
    assert (
        found["exchange, by tokens"]["tokens_over_mean"] < found["Algorithm 1, by tokens"]["tokens_over_mean"]
    )


def test_every_way_to_look_up_gives_the_same_rows() -> None:
    ids = np.random.default_rng(0).permutation(np.arange(-500, 1500))
    assert {embedding.TORCH, embedding.NUMPY, "dynamic table, numba"} <= set(embedding.look_ups(ids, 300, 1))
    added, beside = embedding.inserts(ids, 1)
    assert all(each.median > 0 for each in added.values()) and 12 < beside < 60


def test_a_figure_is_named_after_the_size_it_is_of() -> None:
    assert [embedding.size_name(n) for n in (10_000, 10**6, 1_500_000, 10**7)] == [
        "10000", "1m", "1500000", "10m",
    ]  # fmt: skip
