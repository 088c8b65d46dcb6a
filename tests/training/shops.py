"""Small shops in files."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Row = tuple[str, str, int]


def shop(folder: Path, rows: list[Row], items: list[str], suffix: str) -> tuple[Path, Path]:
    """Interactions as CSV or Parquet, items as CSV."""
    shown, described = folder / f"interactions.{suffix}", folder / "items.csv"
    described.write_text("item,title\n" + "".join(f"{item},title of {item}\n" for item in items))
    if suffix == "parquet":
        users, seen, times = zip(*rows, strict=True)
        pq.write_table(pa.table({"user": users, "item": seen, "time": times}), shown)
    else:
        shown.write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    return shown, described


def many(users: int, suffix: str, folder: Path) -> tuple[Path, Path]:
    draw = random.Random(0)
    rows = [
        (str(u), str(draw.randint(1, 40)), draw.randint(0, 10**6)) for u in range(1, users) for _ in range(9)
    ]
    return shop(folder, rows, [str(i) for i in range(1, 41)], suffix)
