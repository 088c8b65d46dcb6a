"""What a Ray cluster of this machine, or what stands for it, reads, sorts and cuts, beside what one process does."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from genrec.errors import InputError
from tests.training.data.ray_stand_in import modules
from tests.training.data.test_data_at_scale import in_small_blocks
from tests.training.shops import shop
from training.stages import prepare

FILES = 3


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The real one where it is installed."""
    if find_spec("ray"):
        yield
        return
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    yield
    sys.modules.pop("training.data.cluster", None)


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

    in_small_blocks(monkeypatch)
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


@pytest.mark.parametrize("bad", [None, 47])
def test_ratings_are_kept_or_the_first_row_without_one_is_named(
    tmp_path: Path, bad: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 47th is line 9 of the second of three files."""
    in_small_blocks(monkeypatch)
    draw = random.Random(2)
    rows = [
        [draw.randint(1, 9), draw.randint(1, 9), draw.randint(0, 20), draw.randint(1, 5)] for _ in range(120)
    ]
    lines = [
        ",".join(map(str, row[:3] if n == bad else row)) + ("," if n == bad else "")
        for n, row in enumerate(rows)
    ]
    (tmp_path / "parts").mkdir()
    for name, some in {"all": lines, **{f"parts/{n}": lines[40 * n : 40 * n + 40] for n in range(3)}}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item,time,rating", *some]) + "\n")
    (tmp_path / "items.csv").write_text("item,title\n1,one\n")
    alone = prepare(tmp_path / "alone", interactions=tmp_path / "all.csv", items=tmp_path / "items.csv")
    shown = {"interactions": tmp_path / "parts", "items": tmp_path / "items.csv", "cluster": "local"}
    together = prepare(tmp_path / "together", **shown)
    wanted, found = (pq.read_table(tmp_path / way / "histories.parquet") for way in ("alone", "together"))
    assert found.to_pylist() == wanted.to_pylist() and ("ratings" in found.column_names) == (bad is None)
    place = f"{tmp_path / 'parts' / '1.csv'} line 9"
    assert together == [note.replace(f"{tmp_path / 'all.csv'} line 49", place) for note in alone]


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
