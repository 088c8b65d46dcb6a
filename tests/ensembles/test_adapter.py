"""The adapter against a stand-in for the module that only Triton's stubs have."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genrec.errors import ArenaFull, DeadlineExceeded, InputError, StaleHandle

OUTPUTS = {"y": np.int64, "z": np.float32}


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError:
    INTERNAL, INVALID_ARG, UNAVAILABLE = "internal", "invalid", "unavailable"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self.message, self.code = message, code


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    utilities = ModuleType("triton_python_backend_utils")
    logged: list[str] = []
    utilities.__dict__.update(
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=lambda output_tensors=(), error=None: SimpleNamespace(
            tensors={t.name(): t.as_numpy() for t in output_tensors}, error=error
        ),
        Logger=SimpleNamespace(log_error=logged.append),
        logged=logged,
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utilities)
    monkeypatch.delitem(sys.modules, "genrec.triton.adapter", raising=False)
    import genrec.triton.adapter as module

    return module


def request(value: int, rows: int = 1, wanted: tuple[str, ...] = ("y", "z")) -> Any:
    tensors = [Tensor("x", np.full((rows, 2), value, np.int64))]
    return SimpleNamespace(inputs=lambda: tensors, requested_output_names=lambda: list(wanted))


class Double:
    """Answers 2x; 13 raises, 7 is an input error, 8 to 10 are the other errors, 11 loses an answer."""

    batches: list[int]

    def __init__(self) -> None:
        self.batches = []

    def run(self, requests: list[dict[str, np.ndarray]]) -> list[Any]:
        self.batches.append(len(requests))
        return [a for r in requests for a in self._one(r["x"])]

    @staticmethod
    def _one(x: np.ndarray) -> list[Any]:
        errors = {7: InputError("x", "is 7", "not 7"), 8: ArenaFull("full"), 9: DeadlineExceeded("late")}
        value = int(x[0, 0])
        if value == 13:
            raise ValueError("boom")
        if value == 11:
            return []
        if value == 10:
            return [StaleHandle("stale")]
        return [errors.get(value, {"y": 2 * x, "z": x.astype(np.float32)})]


def test_one_run_answers_the_batch(adapter: ModuleType) -> None:
    step = Double()
    responses = adapter.respond("double", step, OUTPUTS, [request(1), request(2), request(7), request(3)])
    assert step.batches == [4]
    assert [r.error is None for r in responses] == [True, True, False, True]
    np.testing.assert_array_equal(responses[3].tensors["y"], [[6, 6]])
    assert responses[3].tensors["z"].dtype == np.float32


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        (7, "invalid", "x: is 7 (accepted: not 7)"),
        (8, "unavailable", "full"),
        (9, "unavailable", "late"),
        (10, "internal", "stale"),
    ],
)
def test_errors_have_fitting_codes(adapter: ModuleType, value: int, code: str, message: str) -> None:
    (response,) = adapter.respond("double", Double(), OUTPUTS, [request(value)])
    assert (response.error.code, response.error.message) == (code, message)


@pytest.mark.parametrize("value", [13, 11])
def test_a_broken_step_answers_everyone_and_is_logged(adapter: ModuleType, value: int) -> None:
    responses = adapter.respond("double", Double(), OUTPUTS, [request(1), request(value)])
    assert [r.error.code for r in responses] == ["internal", "internal"]
    assert "boom" not in responses[0].error.message  # internals stay in the log
    assert "Traceback" in sys.modules["triton_python_backend_utils"].logged[0]


def test_more_rows_are_refused_alone(adapter: ModuleType) -> None:
    step = Double()
    responses = adapter.respond("double", step, OUTPUTS, [request(1, rows=2), request(2)])
    assert step.batches == [1]
    assert responses[0].error.code == "invalid"
    np.testing.assert_array_equal(responses[1].tensors["y"], [[4, 4]])


def test_only_what_is_asked_for_is_sent(adapter: ModuleType) -> None:
    (response,) = adapter.respond("double", Double(), OUTPUTS, [request(1, wanted=("z",))])
    assert list(response.tensors) == ["z"]


def test_model_class(adapter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from genrec import steps

    closed: list[bool] = []
    step = Double()
    step.close = lambda: closed.append(True)  # type: ignore[attr-defined]
    monkeypatch.setattr(steps, "load", lambda name, settings: step if name == "double" else None)
    monkeypatch.setattr(steps.Settings, "from_environment", classmethod(lambda cls: None))
    model = adapter.step_model("double")()
    config = {"output": [{"name": "y", "data_type": "TYPE_INT64"}, {"name": "z", "data_type": "TYPE_FP32"}]}
    model.initialize({"model_config": json.dumps(config)})
    assert model.execute([request(1)])[0].error is None
    model.finalize()
    assert closed == [True]
