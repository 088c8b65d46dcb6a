"""A relay over real passes, and time that a test makes pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genrec import metrics
from genrec.engine.pre_infer import PartByPart, PreInference, PreInferences
from genrec.schedule.relay import Relay
from genrec.schedule.scheduler import Scheduler
from genrec.settings import Settings


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RelayBench:
    """Nothing of what is asked runs before `go`."""

    def __init__(self, settings: Settings, parts: Callable[[], PartByPart | None]) -> None:
        """`parts`: of the executor that serves now."""
        self._parts = parts
        self.clock, self.ran = Clock(), list[Any]()
        self.then: dict[int, Callable[[], object]] = {}  # what happens after so many items
        self._go, self._begun = threading.Event(), threading.Event()
        self.scheduler: Scheduler[Any] = Scheduler([self._run], 1, 0.0, 1, self.clock, patience_s=0.05)
        ahead = parts()
        self.relay = Relay(ahead and ahead.jobs, self.scheduler, settings, self.clock)
        self.scheduler.submit("first", 1)
        assert self._begun.wait(60)

    @property
    def jobs(self) -> PreInferences:
        ahead = self._parts()
        assert ahead
        return ahead.jobs

    def _run(self, batch: list[Any]) -> bool:
        self._begun.set()
        assert self._go.wait(60)
        (item,), usual = batch, True
        if isinstance(item, PreInference):
            ahead = self._parts()
            assert ahead
            usual = self.relay.run(ahead, item)
            item = item.done
        self.ran.append(item)
        self.then.pop(len(self.ran), lambda: None)()
        return usual

    def missing(self, owner: int, tokens: NDArray[np.int32], deadline_s: float | None = None) -> int:
        """What a ranking that comes now has to compute."""
        with self.relay.missing(owner, tokens, deadline_s) as missing:
            return missing

    def go(self) -> list[Any]:
        """Run everything; what ran, in order: tokens done for a pre-inference."""
        self._go.set()
        self.scheduler.close()
        return self.ran[1:]


def ends(end: str) -> float:
    return metrics.PRE_INFERENCES.value(end=end)
