"""What a Ray cluster of this machine reads, sorts and cuts, beside what one process does."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from genrec.errors import InputError
from tests.training.shops import shop
from training.stages import prepare

pytest.importorskip("ray.data", reason="Ray is not installed: pip install -e '.[ray]'")

FILES = 3


def rows_of(user: str, item: str) -> list[tuple[str, str, int]]:
    """Users of two and more items, many of the same time, some rows twice, users in all files."""
    draw = random.Random(1)
    rows = [
        (user.format(draw.randint(1, 40)), item.format(draw.randint(1, 30)), draw.randint(0, 60))
        for _ in range(600)
    ]
    rows += [(user.format(41), item.format(n), n) for n in (1, 2)]
    return [*rows, *draw.choices(rows, k=60)]


def in_files(folder: Path, rows: list[tuple[str, str, int]], items: list[str], suffix: str) -> Path:
    """The rows in the order of the files' names, a third of them in each."""
    parts = folder / "parts"
    for n in range(FILES):
        (folder / f"{n}").mkdir()
        part, _ = shop(
            folder / f"{n}", rows[n * len(rows) // FILES : (n + 1) * len(rows) // FILES], items, suffix
        )
        parts.mkdir(exist_ok=True)
        part.rename(parts / f"part-{n}.{suffix}")
    return parts


@pytest.mark.parametrize(
    ("user", "item", "suffix"), [("{}", "{}", "parquet"), ("u{}", "{}", "csv"), ("{}", "i{}", "csv")]
)
def test_a_cluster_makes_the_same_rows(
    tmp_path: Path, user: str, item: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.data import cluster

    monkeypatch.setattr(cluster, "PARTITION_ROWS", 100)
    rows, items = rows_of(user, item), [item.format(n) for n in range(1, 29)]
    shown, described = shop(tmp_path, rows, items, suffix)
    alone = prepare(tmp_path / "alone", interactions=shown, items=described)
    parts = in_files(tmp_path, rows, items, suffix)
    together = prepare(tmp_path / "together", interactions=parts, items=described, cluster="local")
    assert together == alone and any("duplicated" in note for note in alone)
    for name in ("histories.parquet", "items.parquet"):
        wanted, found = (pq.read_table(tmp_path / way / name) for way in ("alone", "together"))
        assert found.to_pylist() == wanted.to_pylist() and len(wanted) > 20, name
    assert not (tmp_path / "together" / ".data").exists()


def test_an_address_where_nobody_listens_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        shown, described = shop(tmp_path, rows_of("{}", "{}"), ["1"], "csv")
        with pytest.raises(InputError, match=f"ray: '{address}'.*refused.*accepted: the address"):
            prepare(tmp_path / "out", interactions=shown, items=described, cluster=address)


def test_a_bad_value_is_named_by_file_and_line(tmp_path: Path) -> None:
    rows, items = rows_of("{}", "{}"), [str(n) for n in range(1, 31)]
    parts = in_files(tmp_path, rows, items, "csv")
    path = parts / "part-1.csv"
    lines = path.read_text().splitlines()
    described = tmp_path / "0" / "items.csv"
    for bad, problem in (
        ("7,9,yesterday", r"part-1\.csv, column time: line 51 is 'yesterday' \(accepted: epoch numbers"),
        (
            "7,9,1600000000\n7,9,1600000000000",
            r"part-1\.csv, column time: line 51 is 1600000000, which looks like",
        ),
        ("x7,9,12", r"part-1\.csv: line 51 has the user 'x7', where 41 of 42 users are whole numbers"),
    ):
        path.write_text("\n".join([*lines[:50], bad, *lines[51:]]) + "\n")
        with pytest.raises(InputError, match=problem):
            prepare(tmp_path / "out", interactions=parts, items=described, cluster="local")
        assert not list((tmp_path / "out").iterdir())
