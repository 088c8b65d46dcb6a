"""A request that was answered with an error is let go of: its tensors lie in memory of the server's.

Garbage that waits for the collector is too late: a stub of Triton that ends with a request left, crashes.
"""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genrec.errors import InputError, StaleHandle
from genrec.steps import EachAlone
from tests.ensembles.backend import Tensor
from tests.ensembles.test_adapter import OUTPUTS, Later, Sender, adapter

__all__ = ["adapter"]


class Request:
    def __init__(self, value: int) -> None:
        self.tensors, self.sender = [Tensor("x", np.full((1, 2), value, np.int64))], Sender()

    def inputs(self) -> list[Tensor]:
        return self.tensors

    def requested_output_names(self) -> list[str]:
        return ["y"]

    def get_response_sender(self) -> Sender:
        return self.sender


@contextmanager
def held() -> Iterator[None]:
    """What cannot be given back after an error either."""
    try:
        yield
    except InputError:
        raise StaleHandle("is gone") from None


class Refusing(EachAlone):
    """7 is an input error, 8 one that another error led to, 9 one with another after it, 13 none that was foreseen."""

    def answer(self, request: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        value = int(request["x"][0, 0])
        if value == 9:
            with held():
                raise InputError("x", "is 9", "not 9")
        if value == 13:
            raise ValueError("boom")
        if value == 7:
            raise InputError("x", "is 7", "not 7")
        try:
            return {"y": {1: request["x"]}[value]}
        except KeyError as error:
            raise InputError("x", f"is {value}", "1") from error


class RefusingLater(Later):
    """The same from a step that answers later."""

    def submit(self, request: dict[str, np.ndarray], respond: Any) -> None:
        (answer,) = Refusing().run([request])
        respond(answer)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("values", [(1, 7), (1, 8), (1, 9), (13, 7), (1, 1)])
def test_nothing_of_it_is_left(
    adapter: ModuleType, without_collector: None, later: bool, values: tuple[int, ...]
) -> None:
    def execute(requests: list[Any]) -> list[Any]:
        """Its frame holds the requests, as Triton's has it."""
        if later:
            return adapter.defer("later", RefusingLater(), OUTPUTS, requests)
        return adapter.respond("refusing", Refusing(), OUTPUTS, requests)

    requests = [Request(value) for value in values]
    left = [weakref.ref(each) for each in requests]
    answers = execute(requests)
    errors = [value != 1 for value in values] if later or 13 not in values else [True, True]
    assert [each.error is not None for each in answers] == errors
    del requests
    assert [each() for each in left] == [None, None]


def test_the_collector_leaves_out_what_a_start_has_made(
    adapter: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came since is collected at the end, in cycles too, and then nothing is gone through as Python ends."""
    from genrec import steps

    collects: list[bool] = []

    def load(name: str, settings: object) -> Refusing:
        collects.append(gc.isenabled())
        return Refusing()

    monkeypatch.setattr(steps, "load", load)
    about = SimpleNamespace(target="openvino")
    monkeypatch.setattr(steps.Settings, "from_environment", classmethod(lambda cls: about))
    model = adapter.step_model("refusing")()
    gc.unfreeze()  # what tests have frozen
    config = {"output": [{"name": "y", "data_type": "TYPE_INT64"}]}
    model.initialize({"model_config": json.dumps(config), "model_instance_name": "double_0_0"})
    loaded = gc.get_freeze_count()
    assert collects == [False] and gc.isenabled() and len(gc.get_objects()) < loaded / 10
    cycle = [Request(1)]
    cycle.append(cycle)  # type: ignore[arg-type]
    left = weakref.ref(cycle[0])
    del cycle
    model.finalize()
    assert left() is None and len(gc.get_objects()) < loaded / 10


def test_nothing_is_left_when_a_model_ends(adapter: ModuleType, without_collector: None) -> None:
    """Of what held itself."""
    cycle: list[Any] = [Request(1)]
    cycle.append(cycle)
    left = weakref.ref(cycle[0])
    del cycle
    assert left() is not None
    adapter.step_model("refusing")().finalize()
    assert left() is None
