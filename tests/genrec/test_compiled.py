"""Who compiles first does so alone; who comes later waits for nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from genrec import compiled


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], list[None]]:
    """Calls `first_alone` of one name for two threads at once."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def call(of: str, make: Callable[[], None]) -> list[None]:
        with ThreadPoolExecutor(2) as threads:
            return list(
                threads.map(lambda _: compiled.first_alone("kernels", [of], make, lambda: None), range(2))
            )

    return call


def meeting() -> Callable[[], None]:
    """What fails unless two are in it at once."""
    barrier = threading.Barrier(2)

    def make() -> None:
        barrier.wait(20)

    return make


def test_the_first_are_one_at_a_time(both: Callable[..., list[None]]) -> None:
    busy, calls = threading.Lock(), []

    def make() -> None:
        assert busy.acquire(blocking=False), "another one compiles"
        threading.Event().wait(0.05)
        calls.append(1)
        busy.release()

    both("source", make)
    assert len(calls) == 2, "each process has to load what was compiled"


def test_later_ones_do_not_wait_for_each_other(both: Callable[..., list[None]]) -> None:
    both("source", lambda: None)
    both("source", meeting())


def fails() -> None:
    raise ZeroDivisionError


def test_what_failed_is_not_done(both: Callable[..., list[None]], tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        both("source", fails)
    assert not list(tmp_path.glob("*.done"))


def test_what_was_kept_of_another_source_is_dropped_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back at the first source too: what lies there is the second one's."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kept: list[str] = []

    def make(source: str) -> None:
        def compile() -> None:
            kept[:] = kept or [source]

        with ThreadPoolExecutor(2) as threads:
            done = [
                threads.submit(compiled.first_alone, "kernels", [source], compile, kept.clear) for _ in "ab"
            ]
        assert [each.result() for each in done] == [None, None] and kept == [source]

    for source in ("first", "second", "second", "first"):
        make(source)


def test_who_comes_after_one_that_was_ended_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kept: list[str] = ["of another source"]

    def ended() -> None:
        kept.append("a kernel")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled.first_alone("kernels", ["source"], ended, kept.clear)
    compiled.first_alone("kernels", ["source"], lambda: None, kept.clear)
    assert kept == ["a kernel"]
