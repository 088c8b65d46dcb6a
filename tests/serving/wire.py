"""Requests over the two protocols, as a client would send them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.conftest import BEAM_WIDTH

Arrays = dict[str, np.ndarray]
BAD_CHANGES: list[dict[str, np.ndarray | None]] = [
    {"top_k": np.array([[0]], np.int32)},
    {"top_k": np.array([[BEAM_WIDTH + 1]], np.int32)},
    {"deadline_ms": np.array([[-1]], np.int32)},
    {"history": np.zeros((1, 3), np.int32)},
    {"history": np.zeros((2, 3), np.int64), "top_k": np.ones((2, 1), np.int32)},
    {"history": None},
]


def tensors(history: list[int], top_k: int = 5, **optional: Any) -> Arrays:
    """Input tensors of one request; `optional` are user_id, deadline_ms, exclude_history."""
    types = {"user_id": np.int64, "deadline_ms": np.int32, "exclude_history": np.bool_}
    given = {name: np.array([[value]], types[name]) for name, value in optional.items()}
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
    ]
