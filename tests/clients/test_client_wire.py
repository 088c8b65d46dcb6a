"""Requests as tensors, Triton's answers and errors as ours: no server needed."""

from __future__ import annotations

import asyncio
from http.client import BadStatusLine, RemoteDisconnected
from typing import Any

import aiohttp
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from clients import rank_wire, request, wire
from clients.aio import AsyncRecommender
from clients.errors import BadRequest, Overloaded, ServerError, TimedOut, Unreachable
from clients.recommender import Recommender
from genrec.catalogue.group_number import group_number
from genrec.errors import GenrecError, InputError


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("history", {"history": [1.0]}),
        ("history", {"history": [True]}),
        ("history", {"history": [5, True]}),
        ("only", {"history": [5], "only": (np.False_, 5)}),
        ("history", {"history": ["7"]}),
        ("history", {"history": [[1, 2]]}),
        ("history", {"history": [1, [2]]}),
        ("history", {"history": 7}),
        ("history", {"history": [2**63]}),
        ("history", {"history": [-(2**63) - 1]}),
        ("history", {"history": [2**63, -1]}),
        ("history", {"history": [None]}),
        ("top_k", {"top_k": 2**31}),
        ("top_k", {"top_k": -(2**31) - 1}),
        ("top_k", {"top_k": 1.0}),
        ("top_k", {"top_k": True}),
        ("top_k", {"top_k": None}),
        ("user_id", {"user_id": 2**63}),
        ("user_id", {"user_id": "7"}),
        ("deadline_ms", {"deadline_ms": 2**31}),
        ("deadline_ms", {"deadline_ms": 0.5}),
        ("exclude_history", {"exclude_history": 1}),
        ("exclude", {"exclude": 5}),
        ("only", {"only": [0.5]}),
        ("only_groups", {"only_groups": "sale"}),
        ("only_groups", {"only_groups": b"sale"}),
        ("only_groups", {"only_groups": 5}),
        ("only_groups", {"only_groups": np.array(5)}),
        ("only_groups", {"only_groups": {"sale": False}}),
        ("only_groups", {"only_groups": [["sale"]]}),
        ("exclude_groups", {"exclude_groups": [None]}),
        ("exclude_groups", {"exclude_groups": [True]}),
        ("exclude_groups", {"exclude_groups": [5.0]}),
        ("exclude_groups", {"exclude_groups": np.array([b"sale"])}),
    ],
)
def test_what_no_tensor_can_hold_is_refused_before_sending(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError) as raised:
        request.request_tensors(**{"history": [1], **arguments})
    assert raised.value.field == field
    assert raised.value.limit and len(str(raised.value)) < 300


@pytest.mark.parametrize("item", [2**63, -(2**63) - 1, 10**30])
def test_an_item_that_is_too_large_is_named_whatever_stands_beside_it(item: int) -> None:
    """NumPy makes floats of some of these lists, and objects of others."""
    for history in ([item], [-1, item], [1, item]):
        with pytest.raises(InputError, match=f"history: holds {item} "):
            request.request_tensors(history)


@pytest.mark.parametrize(
    "groups", [["7", "sale"], iter((7, "sale")), np.array(["7", "sale"]), [np.uint8(7), np.str_("sale")]]
)
def test_groups_are_named_by_what_gives_names_one_after_the_other(groups: Any) -> None:
    made = request.request_tensors([1], only_groups=groups)["only_groups"]
    assert made.tolist() == [[7, 1132797139936644560]] and made.dtype == np.int64


@pytest.mark.parametrize("named", [["7", "sale"], (7, np.str_("sale")), np.array(["sale"])])
def test_an_error_about_a_group_has_the_name_that_was_asked_for(named: Any) -> None:
    """A server knows its number alone."""
    problem = f"names {group_number('sale')}, which is no group of the catalogue"
    raised = InferenceServerException(f"only_groups: {problem} (accepted: 7)", "StatusCode.INVALID_ARGUMENT")
    question = wire.Question("recommend", {}, wire.parse, groups=(None, named))
    told = question.failed(raised, "here", 1.0)
    assert isinstance(told, BadRequest) and (told.field, told.limit) == ("only_groups", "7")
    assert told.problem == "names 'sale', which is no group of the catalogue"
    for other in (["new"], [7], iter(()), None):
        question = wire.Question("recommend", {}, wire.parse, groups=(other, None))
        assert str(question.failed(raised, "here", 1.0)) == str(raised.message())
    shed = InferenceServerException("router: sheds load", "StatusCode.UNAVAILABLE")
    question = wire.Question("recommend", {}, wire.parse, groups=(None, named))
    assert isinstance(question.failed(shed, "here", 1.0), Overloaded)


@pytest.mark.parametrize(
    "history", [[3, -4], (3, -4), np.array([3, -4], np.int32), np.array([3, -4], np.int64)]
)
def test_tensors_of_a_request(history: Any) -> None:
    made = request.request_tensors(
        history, np.int64(5), user_id=2**62, deadline_ms=9, exclude_history=True, exclude=(), only=[7]
    )
    assert {name: (t.dtype.name, t.tolist()) for name, t in made.items()} == {
        "history": ("int64", [[3, -4]]),
        "top_k": ("int32", [[5]]),
        "exclude_history": ("bool", [[True]]),
        "user_id": ("int64", [[2**62]]),
        "deadline_ms": ("int32", [[9]]),
        "exclude": ("int64", [[]]),
        "only": ("int64", [[7]]),
    }


def test_an_empty_history_and_the_ends_of_the_ranges_can_be_sent() -> None:
    assert request.request_tensors([])["history"].shape == (1, 0)
    ends = [-(2**63), 2**63 - 1]
    assert request.request_tensors(ends)["history"].tolist() == [ends]
    assert request.request_tensors(np.array([1], np.uint64))["history"].dtype == np.int64


@pytest.mark.parametrize("scores", [[10**400], ["good"], ["1.5"], [True], [[1.0], [2.0, 3.0]], [None, "x"]])
def test_scores_that_are_no_numbers_are_refused_before_sending(scores: Any) -> None:
    with pytest.raises(InputError, match="scores: are not numbers"):
        rank_wire.rank_tensors([1], [2], 1, scores, None, None)


@pytest.mark.parametrize("scores", [[1.0], [1.0, 2.0, 3.0], 1.0, [[1.0, 2.0]]])
def test_scores_are_one_per_candidate(scores: Any) -> None:
    with pytest.raises(InputError, match=r"scores: have shape .* \(accepted: 2, one per candidate\)"):
        rank_wire.rank_tensors([1], [2, 3], 1, scores, None, None)
    made = rank_wire.rank_tensors([1], [2, 3], 1, [0.5, -1], None, None)["candidate_scores"]
    assert made.dtype == np.float32 and made.tolist() == [[0.5, -1.0]]


@pytest.mark.parametrize("number", [-(2**31) - 1, 2**31])
def test_what_no_int32_can_hold_is_refused_before_sending(number: int) -> None:
    for name in ("ratings", "features"):
        told = {**dict.fromkeys(("ratings", "times", "now", "features")), name: [1, number]}
        with pytest.raises(InputError, match=f"{name}: holds {number} "):
            rank_wire.event_tensors(**told)


def test_of_what_a_ranking_may_be_told_only_what_is_known_is_sent() -> None:
    assert rank_wire.event_tensors(None, None, None, None) == {}
    made = rank_wire.event_tensors([5], [2**40], 0, [3])
    assert {name: (t.dtype.name, t.tolist()) for name, t in made.items()} == {
        "ratings": ("int32", [[5]]),
        "features": ("int32", [[3]]),
        "times": ("int64", [[2**40]]),
        "now": ("int64", [[0]]),
    }
    assert "retrieve" not in rank_wire.recommend_and_rank_tensors([1], None, 1)
    found = rank_wire.recommend_and_rank_tensors([1], 0, 1)
    assert found["retrieve"].dtype == np.int32 and found["retrieve"].tolist() == [[0]]


class Result:
    def __init__(self, **outputs: Any) -> None:
        self._outputs = outputs

    def as_numpy(self, name: str) -> Any:
        return self._outputs.get(name)


def outputs(**other: Any) -> dict[str, Any]:
    good = {
        "item_ids": np.array([[7, 8]]),
        "scores": np.array([[-0.5, -1.0]], np.float32),
        "report": np.array([[1, 2, 3, 4, 5, 6]]),
    }
    return {**good, **other}


def test_an_answer_is_read_into_arrays_of_its_own() -> None:
    given = outputs()
    answer = wire.parse(Result(**given))
    given["item_ids"][:] = 0
    assert answer.item_ids.tolist() == [7, 8] and answer.item_ids.dtype == np.int64
    assert answer.scores.tolist() == [-0.5, -1.0] and answer.scores.dtype == np.float32
    assert (answer.by, answer.dropped, answer.cut) == ("popularity", 2, 3)
    assert (answer.prompt_tokens, answer.valid, answer.catalogue_version) == (4, 5, 6)
    assert wire.parse(Result(**outputs(report=np.zeros((1, 6), np.int64)))).by == "model"


@pytest.mark.parametrize(
    "other",
    [
        {"scores": None},
        {"report": np.zeros((1, 5), np.int64)},
        {"report": np.zeros((1, 7), np.int64)},
        {"item_ids": np.array([[7, 8, 9]])},
        {"item_ids": np.zeros((0, 2), np.int64)},
    ],
)
def test_an_answer_of_other_shapes_is_the_servers_fault(other: dict[str, Any]) -> None:
    with pytest.raises(ServerError, match="shapes"):
        wire.parse(Result(**outputs(**other)))


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (
            "StatusCode.INVALID_ARGUMENT",
            "in ensemble 'recommend', top_k: is 0 (accepted: 1 to 32)",
            BadRequest,
        ),
        ("400", "in ensemble 'recommend', top_k: is 0 (accepted: 1 to 32)", BadRequest),
        (
            "StatusCode.UNAVAILABLE",
            "in ensemble 'recommend', kv arena: no 8 adjacent free slots of 64",
            Overloaded,
        ),
        ("503", "in ensemble 'recommend', deadline_ms: passed 0.2 ms before prefill began", Overloaded),
        ("StatusCode.UNAVAILABLE", "[request id: <id_unknown>] Exceeds maximum queue size", Overloaded),
        ("StatusCode.UNAVAILABLE", "failed to connect to all addresses; last error: refused", Unreachable),
        ("StatusCode.UNAVAILABLE", "Socket closed", Unreachable),
        ("503", "no healthy upstream", Unreachable),
        ("StatusCode.CANCELLED", "Channel closed!", Unreachable),
        ("StatusCode.NOT_FOUND", "Request for unknown model: 'recommend' is not found", Unreachable),
        ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded", TimedOut),
        (
            "StatusCode.INTERNAL",
            "in ensemble 'recommend', Stub process 'decode_0_0' is not healthy.",
            ServerError,
        ),
        ("500", "decode: internal error (ValueError), see the server's log", ServerError),
        (None, "what is this", ServerError),
    ],
)
def test_errors_of_triton(status: str | None, message: str, expected: type[GenrecError]) -> None:
    found = wire.translate(InferenceServerException(message, status), "host:1", 2.0)
    assert type(found) is expected
    assert "in ensemble" not in str(found) and "request id" not in str(found)


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        ("StatusCode.NOT_FOUND", "Request for unknown model: 'rank' is not found", "does not serve `rank`"),
        ("404", "Request for unknown model: 'rank' is not found", "does not serve `rank`"),
        ("StatusCode.UNAVAILABLE", "Socket closed", "is this the HTTP port?"),
        ("StatusCode.UNAVAILABLE", "Failed parsing HTTP/2 (Expected SETTINGS", "is this the HTTP port?"),
    ],
)
def test_what_to_look_at_is_said(status: str, message: str, said: str) -> None:
    assert said in str(wire.translate(InferenceServerException(message, status), "h:1", 1.0))


def test_an_answer_in_another_protocol_is_not_printed() -> None:
    info: Any = None
    bad_status = [
        BadStatusLine("\x00\x00\x18\x04"),
        aiohttp.ClientResponseError(info, (), status=400, message="Bad status line: b'\\x00\\x00\\x18"),
    ]
    for error in bad_status:
        found = wire.translate(error, "h:1", 1.0)
        assert type(found) is Unreachable and "is this the gRPC port?" in str(found)
        assert "\x00" not in str(found) and "x18" not in str(found)
    assert "gRPC" not in str(wire.translate(RemoteDisconnected("closed"), "h:1", 1.0))


def test_a_bad_request_has_the_parts_of_the_input_error() -> None:
    sent = InputError("top_k", "is 0", "1 to 32: the beam width is 32 (and so on)")
    found = wire.translate(InferenceServerException(f"in ensemble 'recommend', {sent}", "400"), "host:1", 2.0)
    assert isinstance(found, InputError)
    assert (found.field, found.problem, found.limit) == (sent.field, sent.problem, sent.limit)
    assert str(found) == str(sent)
    other = BadRequest("unexpected shape for input 'history'")
    assert (other.field, str(other)) == ("request", "unexpected shape for input 'history'")


def test_other_errors_of_the_client_libraries() -> None:
    assert type(wire.translate(ConnectionRefusedError("no"), "h:1", 1.0)) is Unreachable
    assert type(wire.translate(TimeoutError(), "h:1", 1.0)) is TimedOut
    assert type(wire.translate(asyncio.TimeoutError(), "h:1", 1.0)) is TimedOut
    assert type(wire.translate(ValueError("odd"), "h:1", 1.0)) is ServerError


@pytest.mark.parametrize("client", [Recommender, AsyncRecommender])
@pytest.mark.parametrize(
    ("field", "arguments"),
    [("protocol", ("h:1", "ftp")), ("url", ("http://h:1", "http")), ("url", ("",)),
     ("url", ("a..b:1", "http")), ("url", (f"{'a' * 64}.b:1", "http"))],
)  # fmt: skip
def test_wrong_addresses(client: Any, field: str, arguments: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as raised:
        client(*arguments)
    assert raised.value.field == field
