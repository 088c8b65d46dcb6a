"""The glue between Triton's Python backend and a step: tensors in, one call into `genrec`, tensors out.

With `genrec.triton.metrics` it imports `triton_python_backend_utils`, which exists in the server's stub processes only.
Errors are answers: whatever a step raises, the stub process lives on and every request of the batch is
answered (a stub that dies is never restarted by Triton: hazard H3).
"""

from __future__ import annotations

import gc
import json
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from genrec.errors import (
    ArenaFull,
    DeadlineExceeded,
    GenrecError,
    InputError,
    QueueFull,
    forget_way,
    internal,
)
from genrec.steps import Answer, Step, Tensors
from genrec.steps.later import AnswersLater
from genrec.steps.outcome import count

NUMPY_TYPES = {"TYPE_BOOL": np.bool_, "TYPE_INT32": np.int32, "TYPE_INT64": np.int64, "TYPE_FP32": np.float32}


def step_model(step_name: str) -> type:
    """The class TritonPythonModel that serves the step `step_name`."""

    class TritonPythonModel:
        """Triton calls initialize once, execute per batch, finalize at the end."""

        def initialize(self, args: dict[str, str]) -> None:
            """Build the step from the GENREC_* environment; an error here fails the start of the server."""
            from genrec.process import end_with_parent, give_back, may_write_any_file
            from genrec.settings import Settings
            from genrec.steps import load  # here: a step may take seconds to import
            from genrec.target import target_of
            from genrec.triton.metrics import Published

            gc.disable()  # until all is there that stays
            end_with_parent()
            may_write_any_file()
            self.outputs = output_types(args["model_config"])
            settings = Settings.from_environment()
            self.step = load(step_name, settings)
            give_back()
            self.deferred: Any = self.step if hasattr(self.step, "submit") else None
            self.sending = ThreadPoolExecutor(1, "send") if target_of(settings.target).device else None
            process = args["model_instance_name"].rpartition("_")[2]  # generate_0_1: the second of group 0
            self.published = Published(step_name, getattr(self.step, "look", None), process)
            gc.freeze()  # libraries' objects by the hundred thousand: no collection goes through them again
            gc.enable()

        def execute(self, requests: list[Any]) -> list[Any] | None:
            """One response per request, whatever happens; None for those that the step answers later."""
            if self.deferred:
                return defer(step_name, self.deferred, self.outputs, requests, self.sending)
            return respond(step_name, self.step, self.outputs, requests)

        def finalize(self) -> None:
            """Let the step give back what it holds, then say what it counted last."""
            close = getattr(getattr(self, "step", None), "close", None)
            if close:
                close()
            if sending := getattr(self, "sending", None):
                sending.shutdown()
            if hasattr(self, "published"):
                self.published.stop()
            gc.collect()  # requests in cycles of errors that nobody foresaw: see `_error`
            gc.freeze()  # nor does the interpreter as it ends

    return TritonPythonModel


def output_types(model_config: str) -> dict[str, type]:
    """Output name -> NumPy type, from the configuration (JSON) Triton hands to initialize."""
    return {output["name"]: NUMPY_TYPES[output["data_type"]] for output in json.loads(model_config)["output"]}


def respond(name: str, step: Step, outputs: dict[str, type], requests: list[Any]) -> list[Any]:
    """Run the batch once; the requests that cannot be read are answered with their error and not run."""
    try:
        read = [_arrays(request) for request in requests]
        good = [arrays for arrays in read if isinstance(arrays, dict)]
        ran = step.run(good) if good else []
        if len(ran) != len(good):
            raise RuntimeError(f"{len(ran)} answers to {len(good)} requests")
        left = iter(ran)
        answers: list[Answer] = [next(left) if isinstance(arrays, dict) else arrays for arrays in read]
        return [
            _response(set(request.requested_output_names()), answer, outputs)
            for request, answer in zip(requests, answers, strict=True)
        ]
    except Exception as error:  # the last line of defence of the process
        failure = _internal(name, error)
        return [_error(failure) for _ in requests]


class _Together:
    """Responses to what Triton brought together: those of its own thread go back with it, those of others are sent.

    Each takes a round trip. Where a device computes, who asks it does not wait for that: a thread `sending` does.
    """

    def __init__(self, name: str, count: int, sending: Executor | None) -> None:
        self._name, self._sending = name, sending
        self._thread: int | None = threading.get_ident()
        self._given: list[Any] = [None] * count

    def give(self, place: int, sender: Any, response: Any) -> None:
        """From any thread, once per place."""
        if threading.get_ident() == self._thread:
            self._given[place] = response
            return
        if self._sending:
            with suppress(RuntimeError):  # the system has no thread to give
                self._sending.submit(_send, self._name, sender, response)
                return
        _send(self._name, sender, response)

    def end(self) -> list[Any] | None:
        """What goes back; None when nothing does."""
        self._thread = None
        return self._given if any(each is not None for each in self._given) else None


def defer(
    name: str,
    step: AnswersLater,
    outputs: dict[str, type],
    requests: list[Any],
    sending: Executor | None = None,
) -> list[Any] | None:
    """Hand every request to a step that batches by itself; the responses that are there when it has taken them."""
    together = _Together(name, len(requests), sending)
    with step.bringing():
        for place, request in enumerate(requests):
            sender, wanted = request.get_response_sender(), set(request.requested_output_names())
            respond_later = partial(_give, name, partial(together.give, place, sender), outputs, wanted)
            try:
                arrays = _arrays(request)
                if isinstance(arrays, GenrecError):
                    respond_later(arrays)
                else:
                    step.submit({key: array.copy() for key, array in arrays.items()}, respond_later)
            except Exception as error:  # the last line of defence of the process
                respond_later(_internal(name, error))
    return together.end()


def _give(
    name: str,
    give: Callable[[Any], None],
    outputs: dict[str, type],
    wanted: set[str],
    answer: Answer,
) -> None:
    try:
        response = _response(wanted, answer, outputs)
    except Exception as error:  # the request must be answered, and the caller's thread must live on
        response = _error(_internal(name, error))
    give(response)


def _send(name: str, sender: Any, response: Any) -> None:
    try:
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    except Exception as error:  # the log has why it cannot be sent; perhaps the smaller error can
        failure = _error(_internal(name, error))
        with suppress(Exception):
            sender.send(failure, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _internal(name: str, error: Exception) -> GenrecError:
    """Log what nobody foresaw; the client is told where to look."""
    pb_utils.Logger.log_error(f"{name}: {''.join(traceback.format_exception(error))}")
    return internal(name, error)


def _arrays(request: Any) -> Tensors | InputError:
    """The request's tensors, each [1, ...]: views into shared memory, gone once the batch is answered."""
    arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    # Triton gives them in any order; the error should not change from run to run
    for tensor in sorted(arrays):
        array = arrays[tensor]
        if array.shape[0] != 1:
            return InputError(tensor, f"has {array.shape[0]} rows", "1; the server does the batching")
    return arrays


def _response(wanted: set[str], answer: Answer, outputs: dict[str, type]) -> Any:
    """Tensors of the outputs somebody asked for, or the error; counted if the request ends with it: of a lookup whose
    items are ranked next, nobody asks for the report.

    In memory of their own: they are read when the response is sent, and the step goes on meanwhile.
    """
    if isinstance(answer, GenrecError):
        return _error(answer)
    asked = {name: answer[name] for name in outputs if name in wanted}
    count(asked)
    tensors = [
        pb_utils.Tensor(name, np.array(value, outputs[name], order="C")) for name, value in asked.items()
    ]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def _error(error: GenrecError) -> Any:
    """Triton's error with the code a client can act on: mend the request, try again later, or report it.

    What a request holds of the server's memory is let go of at once: a stub that ends with any of it left, crashes.
    """
    forget_way(error)
    count(error)
    code = pb_utils.TritonError.INTERNAL
    if isinstance(error, InputError):
        code = pb_utils.TritonError.INVALID_ARG
    elif isinstance(error, ArenaFull | QueueFull | DeadlineExceeded):
        code = pb_utils.TritonError.UNAVAILABLE
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))
