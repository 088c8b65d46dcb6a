"""The description is checked, and what is committed is what it renders."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ensembles.description import Ensemble, Model, Step, Tensor, WarmUp
from ensembles.recommend_staged import recommend_staged
from ensembles.render import model_config, render
from ensembles.served import served
from genrec.errors import InputError

ALL = served(3, draft=True, ranker=True)
ROOT = Path(__file__).resolve().parents[2]
A, B = Tensor("a", "INT64", (-1,)), Tensor("b", "FP32", (2,))
ONE = Model("one", (A,), (B,))


def test_committed_repository_is_what_is_rendered(tmp_path: Path) -> None:
    written = render(ALL, tmp_path)
    for path in written:
        assert (ROOT / "model_repository" / path.relative_to(tmp_path)).read_bytes() == path.read_bytes()


def test_committed_repository_has_nothing_else() -> None:
    repository = ROOT / "model_repository"
    models = {model.name for ensemble in ALL for model in ensemble.models}
    assert {p.name for p in repository.iterdir()} == models | {
        "recommend",
        "recommend_staged",
        "recommend_draft",
        "rank",
        "recommend_and_rank",
        "pre_infer",
    }
    for model in models:
        assert f'step_model("{model}")' in (repository / model / "1" / "model.py").read_text()


@pytest.mark.parametrize("levels", [1, 2, 3, 5, 8])
def test_loop_is_unrolled(levels: int) -> None:
    names = [step.model for step in recommend_staged(levels).steps]
    loop = ["beam_search", *["decode", "beam_search"] * (levels - 1)]
    assert names == ["encode_history", "prefill", *loop, "validity_lookup"]


@pytest.mark.parametrize("levels", [0, 9])
def test_levels_have_a_limit(levels: int) -> None:
    with pytest.raises(InputError, match="levels"):
        recommend_staged(levels)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([Step("two", {"a": "a"}, {"b": "b"})], "not described"),
        ([Step("one", {}, {"b": "b"})], "leaves out"),
        ([Step("one", {"a": "a", "x": "a"}, {"b": "b"})], "names"),
        ([Step("one", {"a": "c"}, {"b": "b"})], "nothing makes 'c'"),
        ([Step("one", {"a": "a"}, {"b": "a"})], "an output of the model"),
        ([Step("one", {"a": "a"}, {"b": "c"})], "makes c"),
        ([], "nothing makes 'b'"),
        ([Step("one", {"a": "a"}, {"b": "c"}), Step("one", {"a": "c"}, {"b": "b"})], "FP32"),
    ],
)
def test_wrong_chains_are_refused(steps: list[Step], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Ensemble("e", (A,), (B,), (ONE,), tuple(steps))


@pytest.mark.parametrize(
    ("dims", "wanted", "fits"),
    [
        ((3,), (3,), True),
        ((3,), (-1,), True),
        ((1, 3), (-1, 3), True),
        ((3,), (2,), False),
        ((-1,), (3,), False),
        ((1, 3), (3, -1), False),
        ((1, 3), (-1,), False),
    ],
)
def test_a_step_reads_a_tensor_of_its_own_sizes(
    dims: tuple[int, ...], wanted: tuple[int, ...], fits: bool
) -> None:
    """Or of any, where it takes any. Triton would tell at the start, of a whole repository."""
    given, one = replace(A, dims=dims), replace(ONE, inputs=(replace(A, dims=wanted),))
    parts = ("e", (given,), (B,), (one,), (Step("one", {"a": "a"}, {"b": "b"}),))
    if fits:
        assert Ensemble(*parts).models == (one,)
        return
    with pytest.raises(
        InputError, match=re.escape(f"a is INT64{list(dims)} (accepted: INT64{list(wanted)} for a)")
    ):
        Ensemble(*parts)


def test_optional_tensor_feeds_only_optional_inputs() -> None:
    with pytest.raises(InputError, match="optional"):
        Ensemble("e", (replace(A, optional=True),), (B,), (ONE,), (Step("one", {"a": "a"}, {"b": "b"}),))


def test_bytes_are_no_type_of_a_tensor() -> None:
    with pytest.raises(InputError, match="BYTES"):
        Ensemble("e", (Tensor("a", "BYTES", (1,)),), (), (), ())


def test_warmup_must_fill_every_input() -> None:
    with pytest.raises(InputError, match="leaves out"):
        model_config(replace(ONE, warmups=(WarmUp("empty", {}),)))


def test_no_warmup_is_longer_than_the_shortest_model_s_prompt() -> None:
    """A step refuses more tokens than its model reads, and a server whose warm-up is refused does not start."""
    warmups = [each for ensemble in ALL for model in ensemble.models for each in model.warmups]
    assert {each.dims["tokens"] for each in warmups if "tokens" in each.dims} == {(1,)}


@pytest.mark.parametrize("levels", [1, 3, 8])
def test_ensembles_look_alike_from_outside_whatever_the_levels(levels: int) -> None:
    beam, staged, draft, rank, both, ahead = served(levels, draft=True, ranker=True)
    assert [step.model for step in beam.steps] == ["encode_history", "generate", "validity_lookup"]
    names = [step.model for step in draft.steps]
    assert names == ["encode_history", "prefill_draft", "draft_beam", "validity_lookup"]
    assert (draft.inputs, draft.outputs) == (beam.inputs, beam.outputs) == (staged.inputs, staged.outputs)
    assert rank.outputs == both.outputs
    names = [step.model for step in both.steps]
    assert names == [*(step.model for step in beam.steps), *(step.model for step in rank.steps)]
    assert [step.model for step in ahead.steps] == ["encode_prefix", "score_candidates"]
    plain = served(levels, draft=False, ranker=False)
    assert [e.name for e in plain] == ["recommend", "recommend_staged"]


def test_a_model_of_two_ensembles_has_one_description(tmp_path: Path) -> None:
    first = Ensemble("first", (A,), (B,), (ONE,), (Step("one", {"a": "a"}, {"b": "b"}),))
    second = replace(first, name="second", models=(replace(ONE, instances=2),))
    with pytest.raises(InputError, match="describes one anew"):
        render((first, second), tmp_path)
