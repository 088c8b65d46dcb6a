"""The set of valid semantic IDs (NEZHA, section 3.3) beside what else could verify a draft.

    genrec bench hashset [--items 1000000,10000000] [--repeats 15]

Keys are random semantic IDs of three levels; a lookup is of 512 x 512 candidates at once, half of them items.
All peers answer the same candidates in turn, interleaved. The dense bitmap has a bit for every tuple of codes, so
its size follows the codebooks, not the catalogue: it is shown for codebooks it fits and left out for others.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from genrec.catalogue.hashset import SemanticIdSet
from perf.kit import machine

CANDIDATES = 512 * 512
CODEBOOKS = (1024, 8192)  # T of three levels: 2**30 tuples, a bitmap of 128 MiB; 2**39, one of 64 GiB
BITMAP_LIMIT = 1 << 30
Find = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


def peers(keys: NDArray[np.int64], space: int, folder: Path) -> dict[str, tuple[float, float, Find]]:
    """Name -> (seconds to build, bytes, how it looks up): every way to hold the set."""
    cores = os.cpu_count() or 1
    made: dict[str, tuple[float, float, Find]] = {}
    for threads in sorted({1, cores}):
        seconds, table = _timed(lambda threads=threads: SemanticIdSet.build(keys, threads))
        made[f"hash set, {threads} threads"] = seconds, table.nbytes, lambda q, t=table: t.find(q) >= 0
    table.save(folder / "set")
    seconds, mapped = _timed(lambda: SemanticIdSet.map(folder / "set"))
    made["hash set, mapped file"] = seconds, mapped.nbytes, lambda q: mapped.find(q) >= 0
    seconds, sorted_keys = _timed(lambda: np.sort(keys))
    made["sorted array, isin"] = seconds, sorted_keys.nbytes, lambda q: np.isin(q, sorted_keys)
    made["sorted array, searchsorted"] = seconds, sorted_keys.nbytes, lambda q: _search(sorted_keys, q)
    listed = keys.tolist()
    seconds, plain = _timed(lambda: set(listed))
    size = sys.getsizeof(plain) + sum(map(sys.getsizeof, listed[:1000])) / 1000 * len(listed)
    made["Python set"] = seconds, size, lambda q: np.array([k in plain for k in q.tolist()])
    if space // 8 <= BITMAP_LIMIT:
        seconds, bits = _timed(lambda: _bitmap(keys, space))
        made["dense bitmap"] = (
            seconds,
            bits.nbytes,
            lambda q: (bits[q >> 3] >> (q & 7).astype(np.uint8)) & 1 > 0,
        )
    return made


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    made = work()
    return time.perf_counter() - begun, made


def _search(sorted_keys: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.bool_]:
    at = np.minimum(np.searchsorted(sorted_keys, asked), len(sorted_keys) - 1)
    return sorted_keys[at] == asked


def _bitmap(keys: NDArray[np.int64], space: int) -> NDArray[np.uint8]:
    bits = np.zeros(-(-space // 8), np.uint8)
    np.bitwise_or.at(bits, keys >> 3, np.left_shift(1, keys & 7).astype(np.uint8))
    return bits


def measure(items: int, codebook: int, repeats: int) -> dict[str, dict[str, float]]:
    """Per peer: ns_per_lookup (median), ns_low and ns_high (quartiles), bytes_per_item, build_s."""
    draw = np.random.default_rng(0)
    space = codebook**3
    keys = np.unique(draw.integers(0, space, items))
    draw.shuffle(keys)
    asked = np.concatenate((draw.integers(0, space, CANDIDATES // 2), draw.choice(keys, CANDIDATES // 2)))
    draw.shuffle(asked)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        ways = peers(keys, space, Path(folder))
        truth = ways["sorted array, searchsorted"][2](asked)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in tqdm(
            range(repeats + 1), desc=f"{items} items, T={codebook}", unit="round", file=sys.stderr
        ):
            for name, (_, _, find) in ways.items():
                seconds, found = _timed(lambda find=find: find(asked))
                if not np.array_equal(found, truth):
                    raise AssertionError(f"{name} answers wrongly")
                if turn:
                    taken[name].append(seconds / len(asked) * 1e9)
    return {
        name: {
            "ns_per_lookup": round(median(taken[name]), 1),
            "ns_low": round(float(np.quantile(taken[name], 0.25)), 1),
            "ns_high": round(float(np.quantile(taken[name], 0.75)), 1),
            "bytes_per_item": round(size / len(keys), 2),
            "build_s": round(seconds, 4),
        }
        for name, (seconds, size, _) in ways.items()
    }


def main() -> None:
    """Print a table per size and, last, one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", default="1000000,10000000")
    parser.add_argument("--repeats", type=int, default=15)
    asked = parser.parse_args()
    SemanticIdSet.build(np.arange(4)).find(np.arange(4))  # compile
    facts, figures = machine.facts(), {}
    machine.report(facts, sys.stdout)
    for items in (int(n) for n in asked.items.split(",")):
        for codebook in CODEBOOKS:
            found = figures[f"{items} items, T={codebook}"] = measure(items, codebook, asked.repeats)
            print(
                f"\n{items} random semantic IDs, 3 levels of {codebook} codes, {CANDIDATES} candidates at once"
            )
            print(f"{'':28}{'ns/lookup':>10}{'quartiles':>18}{'bytes/item':>12}{'build s':>10}")
            for name, f in found.items():
                spread = f"{f['ns_low']} to {f['ns_high']}"
                print(
                    f"{name:28}{f['ns_per_lookup']:10.1f}{spread:>18}{f['bytes_per_item']:12.1f}{f['build_s']:10.3f}"
                )
    print(
        json.dumps({"benchmark": "hashset", "figures": figures, "repeats": asked.repeats, "machine": facts})
    )


if __name__ == "__main__":
    main()
