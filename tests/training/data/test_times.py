"""Times of interactions: numbers of any unit and ISO dates are put in order, and what is neither is named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genrec.errors import InputError
from tests.training.data.test_data import files, histories
from training.data.events import events_of
from training.data.interactions import read_interactions
from training.data.sources import read_tables
from training.data.tables import read_table
from training.data.writing import write_data


def times(folder: Path) -> list[list[int]]:
    return pq.read_table(folder / "histories.parquet")["times"].to_pylist()


def test_iso_dates_and_numbers_agree(tmp_path: Path) -> None:
    dates = ["1970-01-01T00:00:09Z", "1970-01-01T02:00:08+02:00", "1970-01-01 00:00:07", "0.5e1"]
    rows = "user,item,timestamp\n" + "".join(f"1,{10 + i % 3},{d}\n" for i, d in enumerate(dates))
    (block,) = read_interactions(files(tmp_path, rows)[0])
    assert block["time"].to_pylist() == [9, 8, 7, 5]


def test_a_parquet_date_that_no_calendar_has_is_refused(tmp_path: Path) -> None:
    """As microseconds it would be second 0."""
    stamps = pa.array([5, 2**62, 7], pa.timestamp("ms"))
    pq.write_table(pa.table({"user": [1] * 3, "item": [10, 11, 12], "date": stamps}), tmp_path / "i.parquet")
    with pytest.raises(InputError, match=r"column date: row 2 is 4611686018427387904 as timestamp\[ms\]"):
        list(read_interactions(tmp_path / "i.parquet"))


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock shows the time of Tokyo."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


def test_a_date_without_a_zone_is_of_utc_wherever_it_is_read(tmp_path: Path, far_away: None) -> None:
    rows = "user,item,timestamp\n" + "".join(f"1,{n},1970-01-01T00:00:0{n}\n" for n in (7, 8, 9))
    (block,) = read_interactions(files(tmp_path, rows)[0])
    assert block["time"].to_pylist() == [7, 8, 9] and time.timezone == -9 * 3600


DAYS, SECONDS = ["2024-05-01", "1969-12-31", "2024-05-02"], [1_714_521_600, -86_400, 1_714_608_000]


@pytest.mark.parametrize(
    "kind",
    [*(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")), pa.timestamp("ns", "Asia/Tokyo"),
     pa.date32(), pa.date64()],
    ids=str,
)  # fmt: skip
def test_dates_of_parquet_are_the_same_moments_in_every_type(tmp_path: Path, kind: pa.DataType) -> None:
    """Pandas writes nanoseconds, other libraries whole days; a time zone is only how a moment is shown."""
    given = pa.array(np.array(DAYS, "datetime64[s]")).cast(kind)
    pq.write_table(pa.table({"user": [1] * 3, "item": [10, 11, 12], "date": given}), tmp_path / "i.parquet")
    (block,) = read_interactions(tmp_path / "i.parquet")
    assert block["time"].to_pylist() == SECONDS
    gap = pa.array([None, *given.to_pylist()[1:]], kind)
    pq.write_table(pa.table({"user": [1] * 3, "item": [10, 11, 12], "date": gap}), tmp_path / "i.parquet")
    with pytest.raises(InputError, match=r"i\.parquet, column date: row 1 is None"):
        list(read_interactions(tmp_path / "i.parquet"))


@pytest.mark.parametrize(
    "column", [pa.array([1, 2, 3], pa.time32("s")), pa.array([[1], [2], [3]]), pa.array([b"1", b"2", b"\xff"]),
               pa.array([True, False, True])],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_a_column_of_parquet_that_has_no_moments_is_named_by_its_type(
    tmp_path: Path, column: pa.Array
) -> None:
    """A time of day, say."""
    pq.write_table(pa.table({"user": [1] * 3, "item": [10, 11, 12], "date": column}), tmp_path / "i.parquet")
    with pytest.raises(
        InputError, match=r"i\.parquet, column date: is of type .*\(accepted: epoch numbers or"
    ):
        list(read_interactions(tmp_path / "i.parquet"))


def test_times_are_kept_in_whole_seconds(tmp_path: Path) -> None:
    dates = ["1970-01-02T00:00:09.9Z", "1969-12-31T23:59:59.5Z", "9999-12-31T23:59:59.999999-23:59", "5.25"]
    rows = "user,item,timestamp\n" + "".join(f"1,{10 + i % 3},{d}\n" for i, d in enumerate(dates))
    write_data(read_tables(*files(tmp_path, rows)), tmp_path)
    assert times(tmp_path) == [[-1, 5, 86_409, 253_402_387_140]]
    assert histories(tmp_path) == {1: [11, 10, 10, 12]}


@pytest.mark.parametrize(("unit", "name"), [(1, ""), (10**3, "milli"), (10**6, "micro"), (10**9, "nano")])
def test_smaller_units_of_epoch_numbers_are_found_and_told(tmp_path: Path, unit: int, name: str) -> None:
    seconds = [1_600_000_000, 400_000_000, 5]
    rows = "user,item,timestamp\n" + "".join(
        f"1,{10 + i},{s * unit + unit // 2}\n" for i, s in enumerate(seconds)
    )
    notes = write_data(read_tables(*files(tmp_path, rows)), tmp_path)
    assert times(tmp_path) == [[5, 400_000_000, 1_600_000_000]]
    told = [note for note in notes if "timestamps are taken for" in note]
    assert told == (
        [f"timestamps are taken for {name}seconds: as seconds they would be after the year 9999"]
        if name
        else []
    )


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ("-1e30 2 3", r"column timestamp: line 2 is -1e\+30"),
        ("2024-05-01 1714564800000 3", r"line 3 is '171456480"),
        ("1714564800 2024_05_01 3", r"line 3 is '2024_05_01'"),
        ("1714564800000 soon 3", "line 3 is 'soon'"),  # milliseconds are none the less
    ],
)
def test_a_time_that_is_no_epoch_number_is_refused(tmp_path: Path, times: str, says: str) -> None:
    rows = "user,item,timestamp\n" + "".join(f"1,{10 + n},{time}\n" for n, time in enumerate(times.split()))
    with pytest.raises(InputError, match=says):
        write_data(read_tables(*files(tmp_path, rows)), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("times", "read"),
    [
        ([20_240_101, 20_240_131, 20_991_231], False),
        ([20_240_101_235_959, 19_800_101_000_000, 20_240_102_000_000], False),
        ([20_240_101, 20_240_132, 20_991_231], True),  # seconds of some clock
        ([20_240_101, 20_241_301, 20_991_231], True),
        ([20_240_101.5, 20_240_131, 20_991_231], True),
        ([1_600_000_000, 1_600_000_001, 20_240_101], True),
    ],
)
def test_dates_without_dashes_are_no_seconds(
    tmp_path: Path, kind: str, times: list[float], read: bool
) -> None:
    pq.write_table(
        pa.table({"user": [1] * 3, "item": [10, 11, 12], "timestamp": times}), tmp_path / "i.parquet"
    )
    rows = "".join(f"1,{10 + n},{time}\n" for n, time in enumerate(times))
    (tmp_path / "i.csv").write_text(f"user,item,timestamp\n{rows}")
    path = tmp_path / f"i.{kind}"
    if read:
        assert next(read_interactions(path))["time"].to_pylist() == times
        return
    row = "row 1" if kind == "parquet" else "line 2"
    with pytest.raises(
        InputError, match=rf"column timestamp: {row} is {times[0]}, a date without dashes as all others"
    ):
        next(read_interactions(path))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([1_600_000_000, 1_600_000_000_000, 1_700_000_000], "1600000000, which looks like seconds, and others"),
        ([1.6e18, 1.6e12, 0], "1600000000000, which looks like milliseconds, and others are nanoseconds"),
        ([1.6e9, 1.7e9, 1.6e15], "1600000000, which looks like seconds, and others are microseconds"),
        ([1.6e9, 4.2e9, 1.6e12], ""),  # a clock of its own: there is a time between
        ([0, 86_400_000, 1.6e12], ""),
    ],
)  # fmt: skip
def test_times_of_two_units_are_refused(tmp_path: Path, kind: str, times: list[float], says: str) -> None:
    """Of a file of interactions, and of one of events that came since."""
    rows = "user,item,timestamp\n" + "".join(f"1,{10 + n},{time:.0f}\n" for n, time in enumerate(times))
    shown, described = files(tmp_path, rows)
    if kind == "parquet":
        shown = tmp_path / "shown.parquet"
        pq.write_table(pa.table({"user": [1] * 3, "item": [10, 11, 12], "timestamp": times}), shown)
    keys, ids = pa.array(["10", "11", "12"]), np.array([10, 11, 12])
    for read in (
        lambda: write_data(read_tables(shown, described), tmp_path / "out"),
        lambda: events_of(read_table(shown), shown, keys, ids),
    ):
        if not says:
            read()
            continue
        first = "row" if kind == "parquet" else "line"
        with pytest.raises(
            InputError, match=rf"{shown}, column timestamp: {first} \d is {says}.* \(accepted: one"
        ):
            read()
