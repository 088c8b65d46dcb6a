"""Interactions to semantic IDs as they grow: memory, time, and whether time stays linear.

    genrec bench data_scale [--interactions 100000000] [--items 1000000] [--sizes 2] [--quick]

Makes shops (items by Zipf's law, log-normal histories, rows in order of time as a log has them) as Parquet in blocks,
and runs `genrec data` on each in a process of its own, as a user would. Each shop has a quarter of the interactions of
the next, and as many items. `peak_gb` is the most memory that the process held at once (`ru_maxrss`), `read_s` and
`tokenise_s` are the times of its stages. `exponent_of_read_s` is the slope of log time over log interactions of the two
largest shops: 1 is linear. A part of `tokenise_s` depends on the items alone, so its exponent is less.
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
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from perf.kit import report

BLOCK = 1 << 20
MEAN_HISTORY, SPREAD = 50, 1.0  # of log-normal histories
NEIGHBOURS = 0.5  # share of interactions that stay near the one before, so that pairs say something
SCHEMA = pa.schema([("user", pa.int64()), ("item", pa.int64()), ("timestamp", pa.int64())])
WORDS = 20_000


def make_shop(folder: Path, interactions: int, items: int, seed: int = 0) -> None:
    """`interactions.parquet` and `items.parquet`, of about `interactions` rows."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    users = max(1, interactions // MEAN_HISTORY)
    weights = np.cumsum(rng.lognormal(0, SPREAD, users))
    with (
        pq.ParquetWriter(folder / "interactions.parquet", SCHEMA) as writer,
        tqdm(total=interactions, desc="making a shop", unit="row", unit_scale=True, delay=2) as bar,
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
    """`genrec data` in a process of its own: `seconds` of both stages, `read_s`, `tokenise_s` and `peak_gb`."""
    command = [sys.executable, "-m", "genrec", "data", str(artifact)]
    for name in ("interactions", "items"):
        command += [f"--{name}", str(shop / f"{name}.parquet")]
    begun = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = child.stdout.read() if child.stdout else ""
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    stages = {line.split(":")[0]: float(line.split()[-2]) for line in said.splitlines() if "done in" in line}
    return {
        "seconds": round(time.monotonic() - begun, 1),
        "read_s": stages["data"],
        "tokenise_s": stages["tokenise"],
        "peak_gb": round(usage.ru_maxrss * 1024 / 1e9, 2),
    }


def sizes_of(interactions: int, sizes: int) -> list[int]:
    """Ascending, each a quarter of the next."""
    return [interactions >> 2 * place for place in reversed(range(sizes))]


def exponent(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """Slope of log `name` over log interactions between the two largest; None of one size."""
    if len(rows) < 2:
        return None
    before, after = rows[-2:]
    return round(log(after[name] / before[name]) / log(after["interactions"] / before["interactions"]), 3)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = report.arguments("data_scale", __doc__)
    parser.add_argument("--interactions", type=int, default=100_000_000, help="of the largest shop")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument(
        "--sizes", type=int, default=2, help="shops, each of a quarter of the next one's interactions"
    )
    parser.add_argument("--folder", type=Path, help="where shops and artifacts go; default: a temporary one")
    parser.add_argument("--quick", action="store_true")
    a = parser.parse_args(argv)
    if a.quick:
        a.interactions, a.items, a.sizes = 40_000, 500, 2
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table and, last, one JSON object."""
    a = arguments(argv)
    run = report.begin(a)
    rows = []
    for interactions in sizes_of(a.interactions, a.sizes):
        with tempfile.TemporaryDirectory(dir=a.folder) as folder:
            shop, artifact = Path(folder) / "shop", Path(folder) / "artifact"
            make_shop(shop, interactions, a.items)
            found = {"interactions": interactions, **run_data(shop, artifact)}
        rows.append(found)
        print(json.dumps(found), flush=True)
    print("\n" + report.columns(tuple(rows[0]), [tuple(row.values()) for row in rows]))
    figures = {**rows[-1], "items": a.items, "by_size": rows}
    for name in ("read_s", "tokenise_s"):
        figures[f"exponent_of_{name}"] = exponent(rows, name)
    run.publish(figures, repeats=1)


if __name__ == "__main__":
    main()
