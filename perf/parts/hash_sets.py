"""The set of valid semantic IDs (NEZHA, section 3.3) beside what else could verify a draft.

    genrec bench hashset [--items 1000000,10000000] [--repeats 15]

Keys are random semantic IDs of three levels; a lookup is of 512 x 512 candidates at once, half of them items.
All peers answer the same candidates in turn, interleaved. The dense bitmap has a bit for every tuple of codes, so
its size follows the codebooks, not the catalogue: it is shown for codebooks it fits and left out for others.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec.catalogue.hashset import SemanticIdSet
from genrec.cores import usable_cores
from perf.kit import report
from perf.kit.turns import in_turns, quartiles, timed

CANDIDATES = 512 * 512
CODEBOOKS = (1024, 8192)  # T of three levels: 2**30 tuples, a bitmap of 128 MiB; 2**39, one of 64 GiB
BITMAP_LIMIT = 1 << 30
Find = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


def peers(keys: NDArray[np.int64], space: int, folder: Path) -> dict[str, tuple[float, float, Find]]:
    """Name -> (seconds to build, bytes, how it looks up): every way to hold the set."""
    made: dict[str, tuple[float, float, Find]] = {}
    for threads in sorted({1, usable_cores()}):
        seconds, table = timed(lambda threads=threads: SemanticIdSet.build(keys, threads))
        made[f"hash set, {threads} threads"] = seconds, table.nbytes, lambda q, t=table: t.find(q) >= 0
    table.save(folder / "set")
    seconds, mapped = timed(lambda: SemanticIdSet.map(folder / "set"))
    made["hash set, mapped file"] = seconds, mapped.nbytes, lambda q: mapped.find(q) >= 0
    seconds, sorted_keys = timed(lambda: np.sort(keys))
    made["sorted array, isin"] = seconds, sorted_keys.nbytes, lambda q: np.isin(q, sorted_keys)
    made["sorted array, searchsorted"] = seconds, sorted_keys.nbytes, lambda q: _search(sorted_keys, q)
    listed = keys.tolist()
    seconds, plain = timed(lambda: set(listed))
    size = sys.getsizeof(plain) + sum(map(sys.getsizeof, listed[:1000])) / 1000 * len(listed)
    made["Python set"] = seconds, size, lambda q: np.array([k in plain for k in q.tolist()])
    if space // 8 <= BITMAP_LIMIT:
        seconds, bits = timed(lambda: _bitmap(keys, space))
        made["dense bitmap"] = (
            seconds,
            bits.nbytes,
            lambda q: (bits[q >> 3] >> (q & 7).astype(np.uint8)) & 1 > 0,
        )
    return made


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

        def turn(name: str) -> float:
            """Nanoseconds of a lookup."""
            seconds, found = timed(lambda: ways[name][2](asked))
            if not np.array_equal(found, truth):
                raise AssertionError(f"{name} answers wrongly")
            return seconds / len(asked) * 1e9

        arms = {name: partial(turn, name) for name in ways}
        taken = in_turns(arms, repeats, warm_ups=1, label=f"{items} items, T={codebook}")
    figures = {}
    for name, (seconds, size, _) in ways.items():
        middle, low, high = quartiles(taken[name])
        figures[name] = {
            "ns_per_lookup": round(middle, 1),
            "ns_low": round(low, 1),
            "ns_high": round(high, 1),
            "bytes_per_item": round(size / len(keys), 2),
            "build_s": round(seconds, 4),
        }
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per size and, last, one JSON object."""
    parser = report.arguments("hashset", __doc__)
    parser.add_argument("--items", default="1000000,10000000")
    parser.add_argument("--repeats", type=int, default=15)
    a = parser.parse_args(argv)
    sizes = report.numbers_of(a, "items")
    run = report.begin(a)
    SemanticIdSet.build(np.arange(4)).find(np.arange(4))  # compile
    figures, spread = {}, {}
    for items, codebook in product(sizes, CODEBOOKS):
        size = f"{items} items, T={codebook}"
        found = figures[size] = measure(items, codebook, a.repeats)
        spread |= {f"{size}, {name}": (f["ns_low"], f["ns_high"]) for name, f in found.items()}
        print(f"\n{items} random semantic IDs, 3 levels of {codebook} codes, {CANDIDATES} candidates at once")
        rows = [
            (name, f["ns_per_lookup"], f"{f['ns_low']} to {f['ns_high']}", f["bytes_per_item"], f["build_s"])
            for name, f in found.items()
        ]
        print(report.columns(("", "ns/lookup", "quartiles", "bytes/item", "build s"), rows))
    run.publish({"figures": figures}, repeats=a.repeats, spread=spread)


if __name__ == "__main__":
    main()
