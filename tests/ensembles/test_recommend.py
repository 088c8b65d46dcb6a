"""The description is checked, and what is committed is what it renders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ensembles.description import Ensemble, Model, Step, Tensor, WarmUp
from ensembles.recommend import recommend
from ensembles.render import model_config, render
from genrec.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
A, B = Tensor("a", "INT64", (-1,)), Tensor("b", "FP32", (2,))
ONE = Model("one", (A,), (B,))


def test_committed_repository_is_what_is_rendered(tmp_path: Path) -> None:
    written = render(recommend(3), "recommend", tmp_path)
    for path in written:
        assert (ROOT / "model_repository" / path.relative_to(tmp_path)).read_bytes() == path.read_bytes()


def test_committed_repository_has_nothing_else() -> None:
    repository = ROOT / "model_repository"
    assert {p.name for p in repository.iterdir()} == {m.name for m in recommend(3).models} | {"recommend"}
    for model in recommend(3).models:
        assert f'step_model("{model.name}")' in (repository / model.name / "1" / "model.py").read_text()


@pytest.mark.parametrize("levels", [1, 2, 3, 5, 8])
def test_loop_is_unrolled(levels: int) -> None:
    names = [step.model for step in recommend(levels).steps]
    loop = ["beam_search", *["decode", "beam_search"] * (levels - 1)]
    assert names == ["encode_history", "prefill", *loop, "validity_lookup"]


@pytest.mark.parametrize("levels", [0, 9])
def test_levels_have_a_limit(levels: int) -> None:
    with pytest.raises(InputError, match="levels"):
        recommend(levels)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([Step("two", {"a": "a"}, {"b": "b"})], "not described"),
        ([Step("one", {}, {"b": "b"})], "leaves out"),
        ([Step("one", {"a": "a", "x": "a"}, {"b": "b"})], "names"),
        ([Step("one", {"a": "c"}, {"b": "b"})], "nothing makes 'c'"),
        ([Step("one", {"a": "a"}, {"b": "a"})], "an output of the model"),
        ([Step("one", {"a": "a"}, {"b": "c"})], "nothing makes 'b'"),
        ([Step("one", {"a": "a"}, {"b": "c"}), Step("one", {"a": "c"}, {"b": "b"})], "FP32"),
    ],
)
def test_wrong_chains_are_refused(steps: list[Step], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Ensemble("e", (A,), (B,), (ONE,), tuple(steps))


def test_optional_tensor_feeds_only_optional_inputs() -> None:
    with pytest.raises(InputError, match="optional"):
        Ensemble("e", (replace(A, optional=True),), (B,), (ONE,), (Step("one", {"a": "a"}, {"b": "b"}),))


def test_bytes_are_no_type_of_a_tensor() -> None:
    with pytest.raises(InputError, match="BYTES"):
        Ensemble("e", (Tensor("a", "BYTES", (1,)),), (), (), ())


def test_warmup_must_fill_every_input() -> None:
    with pytest.raises(InputError, match="leaves out"):
        model_config(replace(ONE, warmups=(WarmUp("empty", {}),)))
