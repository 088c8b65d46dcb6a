"""Publishes what a model's process counts as Triton's own metrics, which Prometheus reads at /metrics.

Once a second, from a thread: every change of a number is a message to the server, so requests never send one, and
what did not change is not sent. Triton has one number per name and labels: processes of a model add to the same
counters, and a counter outlives the process that died. What each says of itself alone has its place among them as a
label: one that takes a dead one's place has the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

from genrec import metrics

EVERY_S = 1.0
# Triton keeps the interpreter while a message is on its way: between two of them requests have their turn.
PAUSE_S = 0.001
Key = tuple[str, metrics.Labels]
log = logging.getLogger("genrec.metrics")


class Published:
    """The metrics of one model's process. A step that has to look before it can count is asked to, at every turn."""

    def __init__(self, model: str, look: Callable[[], None] | None, process: str) -> None:
        """`process`: which of the model's it is, from 0."""
        self._model, self._look, self._process = model, look, process
        self._families: dict[str, Any] = {}  # Triton's metrics do not keep theirs alive
        self._metrics = {key: self._metric(key, family, rises) for key, family, rises in _numbers(model)}
        self._said: dict[Key, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_publishing, name="genrec-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publish the last numbers and let go of Triton, metrics before their families."""
        self._stopping.set()
        self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _metric(self, key: Key, family: metrics.MetricFamily, rises: bool) -> Any:
        name, labels = key
        if name not in self._families:
            kind = pb_utils.MetricFamily.COUNTER if rises else pb_utils.MetricFamily.GAUGE
            self._families[name] = pb_utils.MetricFamily(name=name, description=family.help, kind=kind)
        mine = {"process": self._process} if isinstance(family, metrics.ProcessGauge) else {}
        return self._families[name].Metric(labels={"model": self._model, **dict(labels), **mine})

    def _keep_publishing(self) -> None:
        ended = False
        while not ended:
            ended = self._stopping.wait(EVERY_S)
            try:
                self._publish()
            except Exception:  # requests are answered whether they are counted or not
                log.exception("metrics of %s", self._model)

    def _publish(self) -> None:
        """Send what has changed since the last time."""
        if self._look:
            self._look()
        for name, labels, value, rises in metrics.samples(self._model):
            key = (name, labels)
            if self._said.get(key, 0.0 if rises else None) == value:
                continue
            if rises:
                self._metrics[key].increment(value - self._said.get(key, 0.0))
            else:
                self._metrics[key].set(value)
            self._said[key] = value
            time.sleep(PAUSE_S)


def _numbers(model: str) -> list[tuple[Key, metrics.MetricFamily, bool]]:
    """Every number that the model publishes."""
    return [
        ((sample.name, sample.labels), family, sample.rises)
        for family in metrics.families_of(model)
        for sample in family.samples()
    ]
