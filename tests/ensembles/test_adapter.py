"""The adapter against a stand-in for the module that only Triton's stubs have."""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genrec.errors import ArenaFull, DeadlineExceeded, InputError, StaleHandle
from tests.ensembles.backend import Metric, MetricFamily, Tensor, TritonError

OUTPUTS = {"y": np.int64, "z": np.float32}


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
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
        TRITONSERVER_RESPONSE_COMPLETE_FINAL="final",
        MetricFamily=MetricFamily,
    )
    monkeypatch.setattr(Metric, "sent", {})
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utilities)
    for name in ("adapter", "metrics"):
        monkeypatch.delitem(sys.modules, f"genrec.triton.{name}", raising=False)
    import genrec.process
    import genrec.triton.adapter as module

    monkeypatch.setattr(genrec.process, "end_with_parent", lambda: None)  # this process is no stub
    yield module
    gc.freeze()  # as before it


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


class Sender:
    """Triton's, of a request that is answered later; keeps what it was given, but for the first `fails`."""

    def __init__(self, fails: int = 0) -> None:
        self.sent: list[tuple[Any, Any]] = []
        self.fails = fails

    def send(self, response: Any, flags: Any) -> None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no shared memory is left")
        self.sent.append((response, flags))


class Later:
    """Keeps requests until it is told to answer; 13 raises when it is handed over."""

    def __init__(self) -> None:
        self.held: list[tuple[dict[str, np.ndarray], Any]] = []
        self.at_once = False  # answers what it holds when all has been brought

    @contextmanager
    def bringing(self) -> Iterator[None]:
        yield
        for arrays, respond in self.held if self.at_once else ():
            respond({"y": 2 * arrays["x"]})

    def submit(self, request: dict[str, np.ndarray], respond: Any) -> None:
        if int(request["x"][0, 0]) == 13:
            raise ValueError("boom")
        self.held.append((request, respond))


def later_request(value: int, rows: int = 1) -> tuple[Any, Sender, np.ndarray]:
    """A request, its sender, and the memory its tensor lies in."""
    sender, memory = Sender(), np.full((rows, 2), value, np.int64)
    tensors = [Tensor("x", memory)]
    made = SimpleNamespace(
        inputs=lambda: tensors, requested_output_names=lambda: ["y"], get_response_sender=lambda: sender
    )
    return made, sender, memory


def test_a_step_that_answers_later_sends_one_final_response_to_each_request(adapter: ModuleType) -> None:
    step, asked = Later(), [later_request(n) for n in (1, 2)]
    adapter.defer("later", step, OUTPUTS, [made for made, _, _ in asked])
    assert all(sender.sent == [] for _, sender, _ in asked)
    for _, _, memory in asked:
        memory[:] = -1  # Triton's memory is somebody else's once the batch is handed over
    for arrays, respond in reversed(step.held):
        respond({"y": 2 * arrays["x"]})
    for value, (_, sender, _) in zip((1, 2), asked, strict=True):
        ((response, flags),) = sender.sent
        np.testing.assert_array_equal(response.tensors["y"], [[2 * value] * 2])
        assert flags == "final"


def test_what_is_answered_while_requests_are_brought_goes_back_with_them(adapter: ModuleType) -> None:
    step, asked = Later(), [later_request(n) for n in (1, 13, 2)]
    step.at_once = True
    first, raised, second = adapter.defer("later", step, OUTPUTS, [made for made, _, _ in asked]) or []
    assert all(sender.sent == [] for _, sender, _ in asked), "each has one response"
    assert raised.error.code == "internal"
    for value, response in ((1, first), (2, second)):
        np.testing.assert_array_equal(response.tensors["y"], [[2 * value] * 2])


def test_what_another_thread_answers_meanwhile_is_sent(adapter: ModuleType) -> None:
    def submit(request: dict[str, np.ndarray], respond: Any) -> None:
        with ThreadPoolExecutor() as thread:
            thread.submit(respond, {"y": request["x"]})

    step, (made, sender, _) = Later(), later_request(5)
    step.submit = submit  # type: ignore[method-assign]
    assert adapter.defer("later", step, OUTPUTS, [made]) is None
    assert len(sender.sent) == 1


def test_what_cannot_be_handed_over_or_sent_is_answered_with_its_error(adapter: ModuleType) -> None:
    step = Later()
    two_rows, raises, refused, unfit = (later_request(*each) for each in ((1, 2), (13,), (3,), (4,)))
    asked = [two_rows, raises, refused, unfit]
    back = adapter.defer("later", step, OUTPUTS, [each[0] for each in asked])
    (_, refuse), (_, answer) = step.held
    refuse(DeadlineExceeded("late"))
    answer({"z": np.zeros((1, 1))})  # `y` is asked for
    assert back and [each and each.error.code for each in back] == ["invalid", "internal", None, None]
    said = [[(r.error.code, flags) for r, flags in each[1].sent] for each in asked]
    assert said == [[], [], [("unavailable", "final")], [("internal", "final")]]
    assert len(sys.modules["triton_python_backend_utils"].logged) == 2


@pytest.mark.parametrize("fails", [1, 2])
def test_who_answers_lives_on_when_a_response_cannot_be_sent(adapter: ModuleType, fails: int) -> None:
    step, (made, sender, _) = Later(), later_request(5)
    sender.fails = fails
    adapter.defer("later", step, OUTPUTS, [made])
    step.held[0][1]({"y": np.array([[7]])})
    assert [response.error.code for response, _ in sender.sent] == ["internal"] * (2 - fails)
    assert "no shared memory" in sys.modules["triton_python_backend_utils"].logged[0]


@pytest.mark.parametrize("target", ["openvino", "cuda"])
def test_a_model_hands_its_batch_to_a_step_that_answers_later(
    adapter: ModuleType, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    from genrec import steps

    step, (made, sender, _) = Later(), later_request(5)
    monkeypatch.setattr(steps, "load", lambda name, settings: step)
    monkeypatch.setattr(
        steps.Settings, "from_environment", classmethod(lambda cls: SimpleNamespace(target=target))
    )
    model = adapter.step_model("later")()
    config = {"output": [{"name": "y", "data_type": "TYPE_INT64"}]}
    model.initialize({"model_config": json.dumps(config), "model_instance_name": "double_0_0"})
    assert model.execute([made]) is None, "Triton may bring the next batch"
    step.held[0][1]({"y": np.array([[7]])})
    model.finalize()
    assert len(sender.sent) == 1, "what is answered is sent before the process ends"


def test_who_answers_does_not_wait_until_it_is_sent(adapter: ModuleType) -> None:
    step, (made, sender, _), goes_on = Later(), later_request(5), threading.Event()
    send = sender.send
    sender.send = lambda response, flags: (goes_on.wait(60), send(response, flags))[1]  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as sending:
        adapter.defer("later", step, OUTPUTS, [made], sending)
        answer = np.array([[7]])
        step.held[0][1]({"y": answer})
        answer[:] = 8  # the step's memory is its own again
        assert sender.sent == []
        goes_on.set()
    ((response, _),) = sender.sent
    np.testing.assert_array_equal(response.tensors["y"], [[7]])
    adapter.defer("later", step, OUTPUTS, [made], sending)
    step.held[1][1]({"y": answer})  # no thread can be had: that one has ended
    assert len(sender.sent) == 2


def test_model_class(adapter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from genrec import steps

    closed: list[bool] = []
    step = Double()
    step.close = lambda: closed.append(True)  # type: ignore[attr-defined]
    monkeypatch.setattr(steps, "load", lambda name, settings: step if name == "double" else None)
    monkeypatch.setattr(
        steps.Settings, "from_environment", classmethod(lambda cls: SimpleNamespace(target="openvino"))
    )
    model = adapter.step_model("double")()
    config = {"output": [{"name": "y", "data_type": "TYPE_INT64"}, {"name": "z", "data_type": "TYPE_FP32"}]}
    model.initialize({"model_config": json.dumps(config), "model_instance_name": "double_0_0"})
    assert model.execute([request(1)])[0].error is None
    model.finalize()
    assert closed == [True]


def test_a_model_publishes_what_it_counts(adapter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change once, and the last ones when it ends."""
    from genrec import metrics
    from genrec.triton.metrics import Published

    refused = metrics.Counter("refused_total", "", why=("a", "b"))
    waiting, version = metrics.ProcessGauge("waiting", "", ("double",)), metrics.Gauge("version", "")
    others = metrics.Gauge("of_another", "", ("other",))
    monkeypatch.setattr(metrics, "FAMILIES", (refused, waiting, version, others))
    looked: list[bool] = []
    published = Published("double", lambda: looked.append(True), "1")
    refused.add(2, why="a")
    waiting.set(5)
    version.set(3)
    published.stop()
    sent = {("refused_total", "double", "a"): 2, ("waiting", "double", "1"): 5, ("version", "double"): 3}
    assert Metric.sent == sent
    assert looked
