"""What is held against a server has the server's threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from perf.quality import decoders
from perf.slo import request_stages


@pytest.mark.parametrize(
    ("module", "run"),
    [
        (decoders, lambda tiny: decoders.without_triton(tiny, 8, 2, 5, threads=1)),
        (request_stages, lambda tiny: request_stages.stages(tiny, (8,), requests=2, rounds=1, threads=1)),
    ],
)
def test_without_triton_there_are_as_many_threads(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, run: Callable[[Path], Any]
) -> None:
    class Seen(Exception):
        """With what it was to be made."""

    class Local:
        def __init__(self, *_: Any, **options: Any) -> None:
            raise Seen(options.get("threads"))

    monkeypatch.setattr(module, "LocalRecommender", Local)
    monkeypatch.setattr(module.endpoints, "endpoint", lambda *_, **__: nullcontext())
    monkeypatch.setattr(module.machine, "roofline", lambda: None)
    monkeypatch.setattr(module, "Triton", lambda _: SimpleNamespace(close=lambda: None))
    with pytest.raises(Seen, match="1"):
        run(tiny)
