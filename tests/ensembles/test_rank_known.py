"""Who is known by his number alone: an HSTU ranker reads his ratings, times and features of the artifact."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from ensembles.local import LocalRecommender, request
from export import generator
from genrec.errors import ArtifactError, InputError
from genrec.rank.hstu import FEATURES
from genrec.rank.user_features import USERS
from genrec.steps import Answer
from genrec.steps.known_features import KnownFeatures
from tests.ensembles.known_users import EVENTS, KNOWN, STRANGER, with_known_users
from tests.oracles.hstu_asked import ByTorch, check_ranking


@pytest.fixture(scope="module")
def artifact(tiny_hstu: Path, items: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_known_users(tiny_hstu, items, tmp_path_factory.mktemp("known"))


@pytest.fixture(scope="module")
def local(artifact: Path) -> Iterator[LocalRecommender]:
    with LocalRecommender(artifact, 16, decoder="rank", pool_user_mb=1) as runtime:
        yield runtime


def rank(local: LocalRecommender, candidates: list[int], user: int, **more: np.ndarray) -> Answer:
    asked = {"user_id": np.array([[user]]), "candidates": np.array([candidates]), **more}
    return local.runtime.run([asked | {"top_k": request([], 10)["top_k"]}])[0]


@pytest.mark.parametrize("user", [KNOWN, STRANGER])
def test_all_that_is_known_is_read(
    local: LocalRecommender, artifact: Path, items: list[int], user: int
) -> None:
    events = EVENTS if user == KNOWN else {name: EVENTS[name] for name in ("ratings", "times")}
    by_torch = ByTorch(artifact)
    want = by_torch(items[:5], items[50:70], **events)
    check_ranking(rank(local, items[50:70], user), want, 10)
    for name in events:  # each of them matters
        other = by_torch(items[:5], items[50:70], **{each: events[each] for each in events if each != name})
        assert max(abs(want[item] - other[item]) for item in want) > 0.01


def test_what_a_request_brings_counts(local: LocalRecommender, artifact: Path, items: list[int]) -> None:
    own = {"features": np.array([[1]], np.int32), "ratings": np.array([[1, 1, 1, 1, 1]], np.int32)}
    want = ByTorch(artifact)(items[:5], items[50:70], **{**EVENTS, **own})
    check_ranking(rank(local, items[50:70], KNOWN, **own), want, 10)


@pytest.mark.parametrize(
    ("features", "problem"),
    [
        (
            [2, 5, 1],
            "features: has 2 and 1, which are both of city (accepted: one value of each feature at most)",
        ),
        ([5, 5], "features: has 5 twice (accepted: one value"),
    ],
)
def test_two_values_of_one_feature_are_refused(
    local: LocalRecommender, items: list[int], features: list[int], problem: str
) -> None:
    """Nobody is of two ages: scores of a user whom no training has seen would be answered."""
    given = {"features": np.array([features], np.int32)}
    (ahead,) = local.pre_infer([items[:5]], KNOWN, **given)
    for answer in (rank(local, items[50:70], KNOWN, **given), ahead):
        assert isinstance(answer, InputError) and str(answer).startswith(problem)


def test_a_history_that_is_brought_is_alone(
    local: LocalRecommender, artifact: Path, items: list[int]
) -> None:
    """Nothing says whether ratings of the artifact are of its items."""
    asked = {
        "user_id": np.array([[KNOWN]]),
        "candidates": np.array([items[50:70]]),
        "history": np.array([items[:4]]),
    }
    (answer,) = local.runtime.run([asked | {"top_k": request([], 10)["top_k"]}])
    check_ranking(answer, ByTorch(artifact)(items[:4], items[50:70]), 10)


def test_the_command_sends_what_is_known(
    artifact: Path, items: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["rank", str(artifact), "--candidates", ",".join(map(str, items[50:60])), "--top-k", "10"]
    given = [f"--{name}={','.join(map(str, values[0]))}" for name, values in EVENTS.items()]
    history = f"--history={','.join(map(str, items[:5]))}"
    said = []
    for more in (["--user", "anna"], [history, *given], [history]):
        assert main([*asked, *more]) == 0
        said.append([line for line in capsys.readouterr().out.splitlines() if "ms" not in line])
    assert said[0] == said[1] != said[2]


def test_numbers_are_those_that_were_exported(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training since has numbered values anew, and its weights are not served yet."""
    other = Path(shutil.copytree(artifact, tmp_path / "artifact"))
    monkeypatch.setattr(generator, "_export_all", lambda *_: None)  # graphs are nothing to it
    generator.export_generator(other / "model", other / "onnx")
    numbers = json.loads((other / "model" / FEATURES).read_text())
    (other / "model" / FEATURES).write_text(json.dumps({**numbers, "city": {"Ulm": 1, "Rom": 2}}))
    assert KnownFeatures(other).of(KNOWN).tolist() == [2, 5]
    generator.export_generator(other / "model", other / "onnx")
    assert KnownFeatures(other).of(KNOWN).tolist() == [1, 5]


def test_a_damaged_file_of_users_is_named(artifact: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(artifact, tmp_path / "artifact"))
    assert KnownFeatures(other).of(KNOWN).tolist() == [2, 5]
    (other / USERS).write_bytes((other / USERS).read_bytes()[:50])
    with pytest.raises(
        ArtifactError, match=r"^users\.parquet: not a readable file of users; the server's log"
    ):
        KnownFeatures(other).of(KNOWN)
    numbers = other / "model" / FEATURES
    shutil.copy(artifact / USERS, other / USERS)
    for bad in ("null", '{"city": ["Rom"]}', '{"city": {"Rom": "1"}}', '{"user_id": {"7": 1}}'):
        numbers.write_text(bad)
        with pytest.raises(ArtifactError, match="is not what values of features are numbered by, from 1 on"):
            KnownFeatures(other)
    numbers.unlink()
    (other / USERS).unlink()
    assert not KnownFeatures(other).of(KNOWN).tolist()


def test_numbers_are_those_of_the_weights(artifact: Path, tmp_path: Path) -> None:
    """A training that ends while a server runs numbers values for weights that it has not loaded."""
    other = Path(shutil.copytree(artifact, tmp_path / "artifact"))
    known = KnownFeatures(other)
    (other / "model" / FEATURES).write_text('{"city": {"Ulm": 1}, "age": {"7": 2}}')
    assert known.of(KNOWN).tolist() == [2, 5]
    assert KnownFeatures(other).of(KNOWN).tolist() == [1, 2]
