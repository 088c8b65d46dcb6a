"""Engines leave it to the kernel on which core they run: bound to the first ones, they would wait for each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from genrec.engine import openvino_graphs
from genrec.engine.instructions import engine_of
from genrec.engine.openvino import OpenVinoPasses
from genrec.engine.openvino_graphs import OpenVinoGraphs

SPAN, LOOKS = 32, 50_000


def passes_of(artifact: Path, threads: int) -> Callable[[], None]:
    logits, kv = np.zeros((1, 1, 12), np.float32), [np.zeros((1, 2, SPAN, 8), np.float32) for _ in range(4)]
    passes = OpenVinoPasses(OpenVinoGraphs(engine_of(artifact, "openvino"), "f32", threads, cache=False))
    tokens, lengths = np.arange(SPAN)[None] % 36, np.array([SPAN])
    return lambda: passes.prefill(tokens, lengths, logits, kv)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core is all there is")
@pytest.mark.parametrize("threads", [0, 1])
def test_a_pass_may_run_on_any_core(tiny: Path, threads: int) -> None:
    run, allowed = passes_of(tiny, threads), os.sched_getaffinity(0)
    begun, ended, of = threading.Event(), threading.Event(), [0]

    def again_and_again() -> None:
        of[0] = threading.get_native_id()
        while not ended.is_set():
            run()
            begun.set()

    thread = threading.Thread(target=again_and_again)
    thread.start()
    assert begun.wait(60)
    seen = {frozenset(os.sched_getaffinity(of[0])) for _ in range(LOOKS)}
    ended.set()
    thread.join()
    assert seen == {frozenset(allowed)}


@pytest.mark.parametrize(("limit", "asked", "want"), [(0, 0, 0), (3, 0, 3), (3, 2, 2)])
def test_threads_are_those_asked_for_else_those_of_the_limit(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, limit: int, asked: int, want: int
) -> None:
    monkeypatch.setattr(openvino_graphs, "core_limit", lambda: limit)
    graphs = OpenVinoGraphs(engine_of(tiny, "openvino"), "f32", asked, cache=False)
    assert graphs.hints["INFERENCE_NUM_THREADS"] == want
