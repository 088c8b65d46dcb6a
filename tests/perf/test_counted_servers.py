"""What is counted of a server is of the benchmark's requests alone, and held against as many threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from perf.quality import decoders
from perf.slo import request_stages


class Seen(Exception):
    """With what something was to be made."""


def stages(artifact: Path) -> Any:
    return request_stages.stages(artifact, (8,), requests=2, rounds=1, threads=1)


@pytest.mark.parametrize(
    ("module", "run"),
    [
        (decoders, lambda tiny: decoders.without_triton(tiny, 8, 2, 5, threads=1)),
        (request_stages, stages),
    ],
)
def test_without_triton_there_are_as_many_threads(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, run: Callable[[Path], Any]
) -> None:
    class Local:
        def __init__(self, *_: Any, **options: Any) -> None:
            raise Seen(options.get("threads"))

    monkeypatch.setattr(module, "LocalRecommender", Local)
    monkeypatch.setattr(module.endpoints, "endpoint", lambda *_, **__: nullcontext())
    monkeypatch.setattr(module.machine, "roofline", lambda: None)
    monkeypatch.setattr(module, "Triton", lambda _: SimpleNamespace(close=lambda: None))
    with pytest.raises(Seen, match="1"):
        run(tiny)


@pytest.mark.parametrize(
    ("module", "run"),
    [(decoders, lambda tiny: decoders.speed(tiny, [8], 2, 1, 5, 1)), (request_stages, stages)],
)
def test_no_probe_is_counted_with_the_requests(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, run: Callable[[Path], Any]
) -> None:
    @contextmanager
    def endpoint(*_: Any, probe_every_s: float = 0.0, **__: Any) -> Iterator[None]:
        raise Seen(f"{probe_every_s >= 3600}")
        yield

    monkeypatch.setattr(module.endpoints, "endpoint", endpoint)
    monkeypatch.setattr(module.machine, "roofline", lambda: None)
    with pytest.raises(Seen, match="True"):
        run(tiny)
