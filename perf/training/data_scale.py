"""Interactions to semantic IDs as they grow: memory, time, and whether time stays linear.

    genrec bench data_scale [--interactions 100000000] [--items 1000000] [--sizes 2] [--rounds 1] [--quick]

Makes shops (items by Zipf's law, log-normal histories, rows in order of time as a log has them) as Parquet in blocks,
and runs `genrec data` on each in a process of its own, as a user would, in turns. Each shop has half of the
interactions of the next, and as many items. `peak_gb` is the most memory that the process held at once (`ru_maxrss`),
`read_s` and `tokenise_s` are the times of its stages, `cpu_s` is what all its threads computed, which a busy
machine changes less. `growth_of_` each is its seconds per million interactions of the largest shop over those of half
of it: 1 is linear, null where half took less than the clock tells. It is less where a part depends on the items alone,
as codebooks do: `added_` each has the seconds that each million interactions more takes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from genrec.errors import InputError
from genrec.progress import counting
from perf.kit import report
from perf.kit.turns import extremes, in_turns

BLOCK = 1 << 20
LEAST = 1000  # interactions of a shop: of less no user may have enough to learn from
MEAN_HISTORY, SPREAD = 50, 1.0  # of log-normal histories
NEIGHBOURS = 0.5  # share of interactions that stay near the one before, so that pairs say something
SCHEMA = pa.schema([("user", pa.int64()), ("item", pa.int64()), ("timestamp", pa.int64())])
WORDS = 20_000
TIMES = ("seconds", "read_s", "tokenise_s", "cpu_s")


def make_shop(folder: Path, interactions: int, items: int) -> None:
    """`interactions.parquet` and `items.parquet`, of about `interactions` rows."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    users = max(1, interactions // MEAN_HISTORY)
    weights = np.cumsum(rng.lognormal(0, SPREAD, users))
    with (
        pq.ParquetWriter(folder / "interactions.parquet", SCHEMA) as writer,
        counting("making a shop", interactions, "row") as bar,
    ):
        for start in range(0, interactions, BLOCK):
            count = min(BLOCK, interactions - start)
            user = np.searchsorted(weights, rng.random(count) * weights[-1])
            item = items_by_zipf(rng, items, count, user)
            moment = 1_600_000_000 + start + np.arange(count)
            writer.write_table(pa.table([user + 1, item + 1, moment], schema=SCHEMA))
            bar.update(count)
    write_items(folder / "items.parquet", items, rng)


def items_by_zipf(rng: np.random.Generator, items: int, count: int, user: np.ndarray) -> np.ndarray:
    """int64[count]: by popularity over all, or within the user's own thousandth of the items."""
    rank = np.minimum((items ** rng.random(count)).astype(np.int64), items - 1)
    shelf = max(1, items // 1000)
    near = (user % 1000) * shelf + np.minimum((shelf ** rng.random(count)).astype(np.int64), shelf - 1)
    return np.where(rng.random(count) < NEIGHBOURS, near % items, rank)


def write_items(path: Path, items: int, rng: np.random.Generator) -> None:
    """Items 1 to `items` with titles of four words, the last two of them shared by a shelf."""
    schema = pa.schema([("item", pa.int64()), ("title", pa.string()), ("genre", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, items, BLOCK):
            rows = np.arange(start, min(start + BLOCK, items))
            first, second = (WORDS ** rng.random((2, len(rows)))).astype(int)
            shelf = rows // max(1, items // 1000)
            titles = [
                f"w{a} w{b} shelf{s} kind{s % 40}" for a, b, s in zip(first, second, shelf, strict=True)
            ]
            genres = [f"g{s % 40}" for s in shelf]
            writer.write_table(pa.table([rows + 1, titles, genres], schema=schema))


def run_data(shop: Path, artifact: Path) -> dict[str, float]:
    """`genrec data` in a process of its own: the figures TIMES, and `peak_gb`."""
    command = [sys.executable, "-m", "genrec", "data", str(artifact)]
    for name in ("interactions", "items"):
        command += [f"--{name}", str(shop / f"{name}.parquet")]
    begun = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said = child.stdout.read() if child.stdout else ""
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    except BaseException:
        child.kill()
        child.wait()
        raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    stages = {line.split(":")[0]: float(line.split()[-2]) for line in said.splitlines() if "done in" in line}
    return {
        "seconds": round(time.monotonic() - begun, 1),
        "read_s": stages["data"],
        "tokenise_s": stages["tokenise"],
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gb": round(usage.ru_maxrss * 1024 / 1e9, 2),
    }


def sizes_of(interactions: int, sizes: int) -> list[int]:
    """Ascending, each half of the next."""
    return [interactions >> place for place in reversed(range(sizes))]


def middle(interactions: int, found: Sequence[dict[str, float]]) -> dict[str, float]:
    """The runs of a size as one: medians, seconds per million interactions of each of TIMES, and the highest peak."""
    times = {name: round(median(run[name] for run in found), 1) for name in TIMES}
    rates = {f"{name}_per_million": round(times[name] / interactions * 1e6, 3) for name in TIMES}
    return {
        "interactions": interactions, **times, **rates, "peak_gb": max(run["peak_gb"] for run in found)
    }  # fmt: skip


def growth(half: dict[str, float], whole: dict[str, float]) -> dict[str, float | None]:
    """How TIMES grow: `growth_of_` each, 1 where linear, and `added_` seconds per million interactions more.

    None over a half that took 0.0 s.
    """
    more = (whole["interactions"] - half["interactions"]) / 1e6
    by = whole["interactions"] / half["interactions"]
    ratios = {
        f"growth_of_{name}": round(whole[name] / half[name] / by, 3) if half[name] else None for name in TIMES
    }
    return {**ratios, **{f"added_{name}": round((whole[name] - half[name]) / more, 3) for name in TIMES}}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for. Raises InputError where a shop would have less than LEAST interactions."""
    parser = report.arguments("data_scale", __doc__)
    parser.add_argument("--interactions", type=int, default=100_000_000, help="of the largest shop")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument(
        "--sizes", type=int, default=2, help="shops, each of half of the next one's interactions"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of all shops, in turn")
    parser.add_argument("--folder", type=Path, help="where shops and artifacts go; default: a temporary one")
    parser.add_argument("--quick", action="store_true")
    a = parser.parse_args(argv)
    if a.quick:
        a.interactions, a.items, a.sizes = 40_000, 500, 2
    if a.interactions < LEAST:
        raise InputError("interactions", f"is {a.interactions}", f"at least {LEAST}")
    if (smallest := sizes_of(a.interactions, a.sizes)[0]) < LEAST:
        problem = f"is {a.sizes}, so that the smallest shop has {smallest} of {a.interactions} interactions"
        most = (a.interactions // LEAST).bit_length()
        raise InputError("sizes", problem, f"at most {most}: every shop needs {LEAST}")
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table and, last, one JSON object."""
    a = arguments(argv)
    run = report.begin(a)
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        shops = {size: Path(folder) / str(size) for size in sizes_of(a.interactions, a.sizes)}
        for size, shop in shops.items():
            make_shop(shop, size, a.items)
        found = in_turns({size: partial(told, size, shop) for size, shop in shops.items()}, a.rounds)
    rows = [middle(size, runs) for size, runs in found.items()]
    print("\n" + report.columns(tuple(rows[0]), [tuple(row.values()) for row in rows]))
    grown = [growth(half, whole) for half, whole in pairwise(rows)]
    for pair in grown:
        print("\n" + report.columns(("", "whole over half"), [*pair.items()]))
    spread = {name: extremes([run[name] for run in found[a.interactions]])[1:] for name in TIMES}
    figures = {**rows[-1], "items": a.items, "by_size": rows, **(grown[-1] if grown else {})}
    run.publish(figures, repeats=a.rounds, spread=spread)


def told(size: int, shop: Path) -> dict[str, float]:
    """`run_data` into an artifact that goes at once; its figures are printed as they come."""
    with tempfile.TemporaryDirectory(dir=shop) as artifact:
        found = run_data(shop, Path(artifact))
    print(json.dumps({"interactions": size, **found}), flush=True)
    return found


if __name__ == "__main__":
    main()
