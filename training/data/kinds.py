"""What kind of file a person gives, by its name and its first bytes."""

from __future__ import annotations

import json
from pathlib import Path

from genrec.errors import InputError

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
JSON_LINES = (".jsonl", ".ndjson")
LONGEST_LINE = 1 << 20  # bytes of a line that are looked at
PARQUET = b"PAR1\x15"
SIGNS = {
    b"\x1f\x8b": "is compressed (gzip)",
    b"\x28\xb5\x2f\xfd": "is compressed (zstd)",
    b"BZh91AY": "is compressed (bzip2)",
    b"\xfd7zXZ": "is compressed (xz)",
    b"PK\x03\x04": "is a ZIP archive, or a workbook",
    b"\x93NUMPY": "is an array of NumPy's",
    b"ARROW1": "is Arrow, or Feather",
    b"\x80\x04": "is a pickle",
    b"\x80\x05": "is a pickle",
    PARQUET: "is Parquet",
    b"\xff\xfe": "is text in UTF-16, not UTF-8",
    b"\xfe\xff": "is text in UTF-16, not UTF-8",
}


def kind_of(path: Path) -> str:
    """How its name ends, in small letters."""
    return path.suffix.lower()


def check_file(path: Path, accepted: str) -> None:
    """Raises InputError for what is not there, or is no such file: a folder, a pipe, of another kind by its name."""
    if not path.is_file():
        raise InputError(str(path), "is not a regular file" if path.exists() else "does not exist", accepted)
    if kind_of(path) in JSON_LINES:
        raise InputError(str(path), "is JSON Lines, as its name says", accepted)
    if kind_of(path) in COMPRESSED:
        raise InputError(
            str(path), f"is compressed, as its name says ({path.suffix})", f"{accepted}, unpacked"
        )
    with path.open("rb") as file:
        begin = file.read(8)
    for sign, problem in SIGNS.items():
        if begin.startswith(sign) and not (sign == PARQUET and kind_of(path) == ".parquet"):
            raise InputError(str(path), f"{problem}, as its first bytes say", accepted)
    if kind_of(path) == ".json" and _has_values_in_lines(path):
        raise InputError(str(path), "is JSON Lines, as its first line says", accepted)


def _has_values_in_lines(path: Path) -> bool:
    """Whether the first of several lines is a JSON value: files of gigabytes are, and a whole one is read at once."""
    with path.open("rb") as file:
        first, second = file.readline(LONGEST_LINE), file.readline(LONGEST_LINE)
    try:
        return bool(second.strip()) and isinstance(json.loads(first), dict | list)
    except (ValueError, RecursionError):
        return False
