"""Stand-ins for what only Triton's stubs have."""

from __future__ import annotations

import weakref
from typing import ClassVar

import numpy as np


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


class MetricFamily:
    """Triton's: a metric of a family that is gone is an error."""

    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.kind = name, kind

    def Metric(self, labels: dict[str, str]) -> Metric:
        return Metric(self, labels)


class Metric:
    sent: ClassVar[dict[tuple[str, ...], float]] = {}

    def __init__(self, family: MetricFamily, labels: dict[str, str]) -> None:
        self._family, self._key = weakref.ref(family), (family.name, *labels.values())

    def increment(self, value: float) -> None:
        assert self._family().kind == "counter" and value > 0
        self.sent[self._key] = self.sent.get(self._key, 0) + value

    def set(self, value: float) -> None:
        assert self._family().kind == "gauge"
        self.sent[self._key] = value
