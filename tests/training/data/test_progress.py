"""Every long step of reading data and tokenising shows a bar that reaches its end; a log gets none of what is short."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from genrec import progress
from tests.training.ranker.test_ranker import QUICK, ring_artifact
from tests.training.shops import many
from training.ranker.train import ranker_artifact
from training.sharded.world import World
from training.stages import prepare, tokenise
from training.vectors import reduce

STEPS = {
    "hashing", "reading items.csv", "keys of items", "keys of users", "sorting", "histories", "words", "text vectors",
    "pairs of items", "co-occurrence vectors", "codebooks", "codes", "spread", "means of codes",
}  # fmt: skip


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[bytearray]:
    """A terminal in the place of stderr, and what it was sent."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))  # of no width it gets no bars
    seen = bytearray()

    def read() -> None:
        try:
            while block := os.read(here, 1 << 16):
                seen.extend(block)
        except OSError:  # how Linux says that nobody has the other end open
            pass

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(there, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        yield seen
    reader.join()
    os.close(here)


def run(folder: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run, all of whose bars are shown however soon they end."""
    shown, described = many(60, "parquet" if suffix == "parquet" else "csv", folder)
    if suffix in ("txt", "json"):
        shown = as_sequences(shown, folder / f"interactions.{suffix}")
    monkeypatch.setattr(progress, "DELAY_S", 0)
    monkeypatch.setattr(reduce, "IN_MEMORY", 1)
    prepare(folder / "out", interactions=shown, items=described)
    tokenise(folder / "out", (8, 8, 8))


def as_sequences(table: Path, path: Path) -> Path:
    """What CSV rows say, in the order of the file."""
    histories: dict[str, list[str]] = {}
    for line in table.read_text().splitlines()[1:]:
        user, item, _ = line.split(",")
        histories.setdefault(user, []).append(item)
    lines = "".join(f"{user} {' '.join(items)}\n" for user, items in histories.items())
    path.write_text(json.dumps(histories) if path.suffix == ".json" else lines)
    return path


def last_states(sent: str) -> dict[str, str]:
    """Of every bar its name and the share that it said last; `?` of one without an end."""
    lines = (re.sub(r"\x1b\[\w", "", line) for line in re.split(r"[\r\n]+", sent))
    found = (re.match(r"(.+?): +(\d+%|\S+)", line) for line in lines)
    return {each[1]: each[2] for each in found if each}


@pytest.mark.parametrize("suffix", ["csv", "parquet", "txt", "json"])
def test_every_bar_of_a_run_reaches_its_end(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as sent:
        run(tmp_path, suffix, monkeypatch)
    states = last_states(sent.decode())
    assert set(states) == STEPS | {f"reading interactions.{suffix}"}
    assert set(states.values()) == {"100%"}, states


def test_without_a_terminal_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, "csv", monkeypatch)
    artifact = ring_artifact(tmp_path)
    ranker_artifact(World(), artifact, QUICK, artifact / ".training")
    assert capfd.readouterr().err == ""
