"""Requests over the two protocols, as a client would send them."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from tritonclient.utils import np_to_triton_dtype

Arrays = dict[str, np.ndarray]


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


def cases(items: list[int]) -> list[dict[str, np.ndarray]]:
    """Requests of every kind that is answered: short, long, empty, with unknown items, with all options."""
    return [
        tensors(items[:3]),
        tensors(items[5:40], top_k=20),
        tensors([]),
        tensors([-5, items[0], 123456789]),
        tensors(items[:4], exclude_history=True, user_id=7, deadline_ms=60_000),
    ]
