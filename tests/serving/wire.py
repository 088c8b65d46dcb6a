"""Requests over the two protocols, as a client would send them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from genrec.artifact import load_config
from genrec.engine.load import load_layout
from genrec.settings import Settings
from tests.conftest import BEAM_WIDTH

Arrays = dict[str, np.ndarray]
TOGETHER = {"f32": 0.0, "bf16": 0.05}  # what the company in a batch may do to a score: see `assert_alike`
BAD_CHANGES: list[dict[str, np.ndarray | None]] = [
    {"top_k": np.array([[0]], np.int32)},
    {"top_k": np.array([[BEAM_WIDTH + 1]], np.int32)},
    {"deadline_ms": np.array([[-1]], np.int32)},
    {"history": np.zeros((1, 3), np.int32)},
    {"history": np.zeros((2, 3), np.int64), "top_k": np.ones((2, 1), np.int32)},
    {"history": None},
    {"exclude": np.zeros((1, 3), np.int32)},
]


def tensors(history: list[int], top_k: int = 5, **optional: Any) -> Arrays:
    """Input tensors of one request; `optional` are user_id, deadline_ms, exclude_history, lists of items, of groups."""
    types = {
        "user_id": np.int64,
        "deadline_ms": np.int32,
        "exclude_history": np.bool_,
        "exclude": np.int64,
        "only": np.int64,
        "exclude_groups": np.int64,
        "only_groups": np.int64,
    }
    given = {
        name: np.array([value if isinstance(value, list) else [value]], types[name])
        for name, value in optional.items()
    }
    return {"history": np.array([history], np.int64), "top_k": np.array([[top_k]], np.int32), **given}


def inputs(module: ModuleType, arrays: Mapping[str, np.ndarray]) -> list[Any]:
    """The client library's inputs; `module` is tritonclient.grpc or tritonclient.http."""
    made = []
    for name, array in arrays.items():
        made.append(module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array)
    return made


def ask(module: ModuleType, url: str, arrays: Mapping[str, np.ndarray], model: str = "recommend") -> Arrays:
    """One request on a connection of its own; all outputs by name."""
    with module.InferenceServerClient(url) as client:
        result = client.infer(model, inputs(module, arrays))
        response = result.get_response()
        listed = response["outputs"] if isinstance(response, dict) else response.outputs
        names = [o["name"] if isinstance(o, dict) else o.name for o in listed]
        return {name: result.as_numpy(name) for name in names}


def together(artifact: Path) -> float:
    """What the company in a batch may do to a score of this artifact's engines."""
    return TOGETHER[load_layout(Settings(artifact, Path("none")), load_config(artifact)).kv_type]


def assert_alike(found: Arrays, expected: Arrays, atol: float) -> None:
    """The same answer to one request: to the bit when `atol` is 0, else but for what scores so far apart leave open.

    In bf16 on CPUs with AMX, OpenVINO multiplies 16 rows and more by other kernels than fewer, and these add up in
    another order. Mostly that is 1e-6 of a score; where it turns a value to the next of bf16's, seen in one request of
    200, it was up to 0.017.
    """
    np.testing.assert_array_equal(found["report"], expected["report"])
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=0, atol=atol)
    if not atol:
        np.testing.assert_array_equal(found["item_ids"], expected["item_ids"])
    mine, theirs = (
        dict(zip(each["item_ids"][0].tolist(), each["scores"][0].tolist(), strict=True))
        for each in (found, expected)
    )
    for one, other in ((mine, theirs), (theirs, mine)):
        last = min(other.values())
        for item, score in one.items():  # who is not in the other would not have been far up in it
            assert abs(score - other[item]) <= atol if item in other else score <= last + atol, item


def changed(arrays: Arrays, change: Mapping[str, np.ndarray | None]) -> Arrays:
    """A request with tensors replaced, or left out (None)."""
    return {name: array for name, array in {**arrays, **change}.items() if array is not None}


def refusal(url: str, arrays: Arrays, model: str) -> tuple[str, str]:
    """Status and message with which a request over gRPC is refused."""
    with pytest.raises(InferenceServerException) as refused:
        ask(tritonclient.grpc, url, arrays, model)
    return refused.value.status(), refused.value.message()


def cases(items: list[int]) -> list[dict[str, np.ndarray]]:
    """Requests of every kind that is answered: short, long, empty, with unknown items, with all options."""
    return [
        tensors(items[:3]),
        tensors(items[5:40], top_k=20),
        tensors([]),
        tensors([-5, items[0], 123456789]),
        tensors(items[:4], exclude_history=True, user_id=7, deadline_ms=60_000),
        tensors(items[:4], exclude=[*items[4:30], -5], only=items[20:60]),
    ]
