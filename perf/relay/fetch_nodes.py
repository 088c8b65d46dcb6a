"""The nodes of `genrec bench relay_fetch`: one has prefixes, the other wants them. In a network of their own."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from genrec.artifact import load_config
from genrec.engine.instructions import engine_of
from genrec.engine.load_ranker import load_entry_layout
from genrec.engine.openvino_ranker import load_rankers
from genrec.engine.rank_users import RankUsers
from genrec.errors import InputError
from genrec.kv.entries import EntryLayout
from genrec.nodes.mooncake import Mooncake
from genrec.pool.keys import Words, owner_key, user_words
from genrec.pool.pool import Pool
from genrec.process import end_with_command
from genrec.search.scratch import Scratch
from genrec.settings import Settings
from perf.kit import turns
from perf.kit.store_master import PORT, master_command

HOST = "127.0.0.1"
PATIENCE_S = 60.0
LEAST = 64 << 20  # bytes, below which the store refuses
ROOM = 1.5  # of all entries: what the pool and the store are given


class Node:
    """A pool, and its way into the store; both nodes share the secret of their pools."""

    def __init__(
        self, folder: Path, host: str, layout: EntryLayout, lengths: list[int], repeats: int
    ) -> None:
        room = int(ROOM * repeats * sum(layout.user_bytes(tokens) for tokens in lengths)) + LEAST
        Pool.create(folder, room, 0, 0, secret=bytes(32))
        self.pool, self._layout = Pool(folder), layout
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.store = Mooncake(f"{HOST}:{PORT}", host, room, 256 << 20)
                return
            except InputError:  # the master does not listen yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def hashes(self, user: int, tokens: int) -> Words:
        """Of a user's history of zeros: what is in an entry does not matter here."""
        history, layout = np.zeros(tokens, np.int32), self._layout
        return user_words(self.pool.secret, "mock", layout.name, user, history, layout.step)

    def send(self, user: int, tokens: int) -> None:
        """Keep an entry here, and tell the store."""
        named, owner = self.hashes(user, tokens), owner_key(self.pool.secret, user)
        writing = self.pool.write_user(named, tokens, self._layout.user_bytes(tokens), owner)
        assert writing
        writing.memory[:] = user % 256
        self.pool.commit(writing)
        assert self.store.send_user(self.pool, named, self._layout.step, owner, PATIENCE_S)

    def bring(self, user: int, tokens: int) -> None:
        """From the other node into this pool, then read it."""
        named, owner = self.hashes(user, tokens), owner_key(self.pool.secret, user)
        assert self.store.bring_user(self.pool, named, self._layout.step, owner, PATIENCE_S)
        self.read(user, tokens)

    def read(self, user: int, tokens: int) -> None:
        """Find it in this pool, and read every byte."""
        found = self.pool.find_user(self.hashes(user, tokens), self._layout.step)
        assert found and found.tokens == tokens
        whole = found.memory[: found.memory.size // 8 * 8].view(np.uint64)
        assert int(np.bitwise_or.reduce(whole)) == int.from_bytes(bytes([user % 256]) * 8, "little")
        self.pool.release(found)


def owner(folder: Path, layout: EntryLayout, lengths: list[int], repeats: int, told: Connection) -> None:
    """The process of the node that has the prefixes; it stays until it is ended."""
    end_with_command()
    node = Node(folder, f"{HOST}:21201", layout, lengths, repeats)
    for user, tokens in users_of(lengths, repeats):
        node.send(user, tokens)
    told.send("sent")
    time.sleep(3600)


def users_of(lengths: list[int], repeats: int) -> list[tuple[int, int]]:
    """(user, tokens) in the order in which they are asked for: all lengths in turns, nobody twice."""
    return [
        (turn * len(lengths) + number, tokens)
        for turn in range(repeats)
        for number, tokens in enumerate(lengths)
    ]


def computing(artifact: Path, layout: EntryLayout) -> Callable[[int], None]:
    """What computes a prefix of so many tokens, by the artifact's engines."""
    folder, config = engine_of(artifact, "openvino"), load_config(artifact)
    users = RankUsers(
        load_rankers(folder, config, layout.kv_type, Settings(artifact, artifact))[0], layout, "mock"
    )
    scratch = Scratch()

    def compute(tokens: int) -> None:
        scratch.clear()
        span = users.entries.span(tokens)
        kv = layout.user(scratch.take((layout.user_bytes(span),), np.dtype(np.uint8)), span)
        users.fill(np.zeros(tokens, np.int32), kv, 0, tokens)

    return compute


def ms_of(work: Callable[[], None]) -> float:
    """How long it takes."""
    return 1e3 * turns.timed(work)[0]


def in_turn(
    node: Node, compute: Callable[[int], None], lengths: list[int], repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Tokens -> way -> milliseconds of each repeat; all ways and lengths in turns.

    What is read where it lies was brought before, of users of its own: a prefix that has just come is in the caches.
    """
    users = users_of(lengths, 2 * repeats)
    half = len(users) // 2
    for user, tokens in users[:half]:
        node.bring(user, tokens)
    arms: dict[tuple[int, str], Callable[[], float]] = {}
    for number, tokens in enumerate(lengths):
        here, there = (
            iter([user for user, _ in some[number :: len(lengths)]]) for some in (users[:half], users[half:])
        )
        arms |= {
            (tokens, "local"): lambda users=here, tokens=tokens: ms_of(
                partial(node.read, next(users), tokens)
            ),
            (tokens, "remote"): lambda users=there, tokens=tokens: ms_of(
                partial(node.bring, next(users), tokens)
            ),
            (tokens, "computed"): partial(ms_of, partial(compute, tokens)),
        }
    found: dict[str, dict[str, list[float]]] = {}
    for (tokens, way), taken in turns.in_turns(arms, repeats, label="prefixes").items():
        found.setdefault(str(tokens), {})[way] = taken
    return found


def measured(artifact: Path, lengths: list[int], repeats: int, folder: Path) -> dict[str, Any]:
    """`token_bytes`, and `ms`: tokens -> way -> milliseconds of each repeat. The pools lie in `folder`."""
    layout = load_entry_layout(Settings(artifact, artifact), load_config(artifact))
    lengths = list(dict.fromkeys(tokens // layout.step * layout.step for tokens in lengths))  # whole items
    compute = computing(artifact, layout)
    for tokens in lengths:
        compute(tokens)  # the first of a shape is slower
    heard, told = multiprocessing.Pipe()
    given = (folder / "owner", layout, lengths, 2 * repeats, told)
    other = multiprocessing.get_context("spawn").Process(target=owner, args=given, daemon=True)
    other.start()
    node = Node(folder / "asking", f"{HOST}:21202", layout, lengths, 2 * repeats)
    if not heard.poll(PATIENCE_S * 3):
        raise InputError("relay_fetch", "the other node has sent nothing", f"within {PATIENCE_S * 3:.0f} s")
    found = in_turn(node, compute, lengths, repeats)
    other.kill()
    return {"token_bytes": layout.token_bytes, "ms": found}


if __name__ == "__main__":
    master = subprocess.Popen(master_command(HOST), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    code = 1
    try:
        artifact, lengths, repeats, folder = sys.argv[1:]
        wanted = list(map(int, lengths.split(",")))
        print(json.dumps(measured(Path(artifact), wanted, int(repeats), Path(folder))))
        code = 0
    finally:
        master.kill()
        master.wait()
        sys.stdout.flush()
        if not code:
            os._exit(code)  # the store's own end waits for the master
