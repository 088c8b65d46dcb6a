"""Times of interactions: epoch numbers or ISO dates, as seconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from genrec.errors import InputError
from training.data.tables import TIME, check_utf8, column, name_of, where

LAST = 253_402_387_200  # seconds: a day after the year 9999, beyond which no ISO date is, whatever its zone
MODERN = (315_532_800, 4_102_444_800)  # seconds: years 1980 to 2099, of which most times are
# Of a second; Python 3.10 takes three digits or six.
_FRACTION = re.compile(r"\.([0-9]{1,6})[0-9]*(?=[+-]|$)")
UNITS = {1: "seconds", 10**3: "milliseconds", 10**6: "microseconds", 10**9: "nanoseconds"}


def seconds(table: pa.Table, path: Path, first: int = 0) -> np.ndarray:
    """The times of a table, epoch numbers or ISO dates -> float64[n] seconds; naive dates count as UTC.

    The table begins at row `first` of its file. Epoch numbers keep their unit. Float64 tells moments apart down to
    256 ns when they are counted in nanoseconds.
    """
    flat = column(table, path, TIME).combine_chunks()
    field, limit = f"{path}, column {name_of(table, TIME)}", "epoch numbers or ISO dates, 2024-05-01T12:00:00"
    check_utf8(flat, field, path, first)
    try:
        if pa.types.is_boolean(flat.type):  # a cast takes them for 0 and 1
            raise pa.ArrowInvalid("no times")
        times = of_dates(flat) if pa.types.is_temporal(flat.type) else numbers_or_dates(flat)
    except pa.ArrowException as error:
        raise InputError(field, f"is of type {flat.type}", limit) from error
    wrong = np.flatnonzero(~np.isfinite(times))
    if len(wrong):
        raise InputError(field, f"{where(path, first + wrong[0])} is {_shown(flat[int(wrong[0])])}", limit)
    # Of a later block, which may have one row, it might be chance.
    if not first and not pa.types.is_temporal(flat.type) and are_dates(times):
        problem = f"{where(path, 0)} is {times[0]:.0f}, a date without dashes as all others are"
        raise InputError(field, problem, limit)
    return times


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # Python has no such date
        return f"{value.value} as {value.type}"


# Where the first time lies whose size is between two numbers: file and column, line, and the time.
FirstTime = Callable[[float, float], tuple[str, str, float] | None]


def unit_of(farthest: float, first: FirstTime) -> int:
    """How many units of epoch numbers are a second, of a source whose number farthest from 0 has this size.

    They are seconds where that is no later than LAST, else milliseconds, and so on. Raises InputError.
    """
    for unit in UNITS:
        if farthest <= LAST * unit:
            check_one_unit(unit, first)
            return unit
    field, line, time = first(farthest, farthest) or ("times", "one", farthest)
    raise InputError(field, f"{line} is {time:g}", f"at most nanoseconds, {LAST * unit:g}")


def check_one_unit(unit: int, first: FirstTime) -> None:
    """Raises InputError for times that are of MODERN in a unit larger than theirs, and none between those and MODERN.

    Milliseconds, say, of which some are of a few weeks in 1970 and all others of 1980 or later, are seconds in part.
    """
    for larger in UNITS:
        low, high = (each * larger for each in MODERN)
        if larger < unit and (found := first(low, high)) and not first(high + 1, 1000 * low - 1):
            field, line, time = found
            problem = f"{line} is {time:.0f}, which looks like {UNITS[larger]}, and others are {UNITS[unit]}"
            raise InputError(field, problem, "one unit for all times")


def are_dates(times: np.ndarray) -> bool:
    """Whether all of n > 0 numbers are dates as 20240501, or 20240501120000: as seconds they were of August 1970."""
    days = np.where(times < 10**8, times, times // 10**6)
    month, day = days // 100 % 100, days % 100
    found = (times % 1 == 0) & (days >= 19_800_101) & (days <= 20_991_231)
    return bool((found & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())


def whole_seconds(times: np.ndarray, unit: int) -> np.ndarray:
    """float64[n] in units of which `unit` are a second -> int64[n], parts of a second cut off."""
    return np.floor(times / unit).astype(np.int64)


def of_dates(values: pa.Array) -> np.ndarray:
    """Arrow's dates and timestamps -> float64[n] seconds, NaN where they are beyond LAST."""
    if not pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("ms"))
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[values.type.unit]
    # Not by casts to another unit, which overflow without a word.
    times = pc.divide(values.cast(pa.int64()).cast(pa.float64(), safe=False), per_second)
    times = times.to_numpy(zero_copy_only=False)
    return np.where(np.abs(times) <= LAST, times, np.nan)


def numbers_or_dates(values: pa.Array) -> np.ndarray:
    """Numbers, or texts of numbers or of dates -> float64[n], NaN where a text is neither.

    Beside dates, which are seconds, numbers are seconds too: NaN where they are beyond LAST.
    """
    try:
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        texts = pc.fill_null(values.cast(pa.string()), "").to_pylist()
    numbers = np.array([_number(text) for text in texts])
    dates = np.array([_moment(text) for text in texts])
    of_number = np.isfinite(numbers)
    if np.isfinite(dates[~of_number]).any():
        numbers[np.abs(numbers) > LAST] = np.nan
    return np.where(of_number, numbers, dates)


def _number(text: str) -> float:
    try:
        return float("nan") if "_" in text else float(text)  # Python reads 2024_05_01 as 20240501
    except ValueError:
        return float("nan")


def _six_digits(fraction: re.Match[str]) -> str:
    return f".{fraction[1]:0<6}"


def _moment(text: str) -> float:
    """An ISO date -> seconds, NaN when it is none."""
    try:
        moment = datetime.fromisoformat(_FRACTION.sub(_six_digits, text.strip().replace("Z", "+00:00")))
    except ValueError:
        return float("nan")
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
