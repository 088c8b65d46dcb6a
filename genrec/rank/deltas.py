"""Deltas of a model: `deltas/<n>/`, rows and weights that others have become since the model was exported.

Each has a manifest of its own, and appears whole or not at all. It says by name which weights it changes: those of the
export (their sha256), or of the export with the delta before it. So deltas are taken in one after the other, and one of
another export, or of another order, is refused. A delta is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from genrec import manifest
from genrec.errors import ArtifactError
from genrec.tensor_file import read_tensors
from genrec.words import command

FOLDER, FILE = "deltas", "delta.safetensors"
STAGE = "delta"  # of its manifest; the key is the name of the weights that it changes
FORMAT, VERSION = "genrec-delta", "1"
ROWS, VALUES = "/rows", "/values"  # end the names of a table's tensors
Arrays = dict[str, NDArray[Any]]


class Delta(NamedTuple):
    """`rows` of tables, int64[n] ascending, with float32[n, d]; and tensors that changed as a `whole`."""

    rows: dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]]
    whole: Arrays


def folder_of(artifact: Path, number: int) -> Path:
    """Where delta `number` lies, from 1 on; there or not."""
    return artifact / FOLDER / str(number)


def name_of(base: str, folder: Path) -> str:
    """Of the weights `base` with the delta in `folder`, as its manifest has it."""
    return sha256(f"{base} {manifest.read(folder)[STAGE]['outputs'][FILE]}".encode()).hexdigest()


def check_next(artifact: Path, number: int) -> None:
    """Refuse a gap: where delta `number` is not there and later ones are, they change weights that nobody has any more.

    Raises ArtifactError.
    """
    missing = folder_of(artifact, number)
    names = [each.name for each in missing.parent.iterdir()] if missing.parent.is_dir() else []
    later = [int(name) for name in names if name.isdecimal() and int(name) > number]
    if later and not missing.exists():
        anew = f"{command('export', artifact)} and {command('build', artifact)}"
        helps = f"; put it in its place again, or {anew} the model as it is now"
        raise ArtifactError(missing, f"is missing, and delta {min(later)} is to weights with it{helps}")


def check_base(artifact: Path, number: int, base: str) -> Path:
    """The folder of a delta whose files are as they were made, and which changes the weights called `base`.

    Raises ArtifactError.
    """
    folder = folder_of(artifact, number)
    manifest.verify(folder)
    entry = manifest.read(folder).get(STAGE)
    if entry is None or FILE not in entry["outputs"]:
        raise ArtifactError(folder / manifest.NAME, f"has no stage {STAGE!r} that made {FILE}")
    if entry["key"] != base:
        problem = f"is a delta to weights {entry['key'][:12]}, not to {base[:12]}, which are here"
        raise ArtifactError(folder, f"{problem}: of another export, or not the next of its order")
    return folder


def read_delta(folder: Path, weights: Mapping[str, NDArray[Any]], tables: Collection[str]) -> Delta:
    """Checked against the `weights` that it changes. Raises ArtifactError naming the tensor and the problem."""
    path = folder / FILE
    try:
        _, tensors = read_tensors(path, FORMAT, VERSION)
    # SafetensorError: of a type NumPy has not
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise ArtifactError(path, f"is not readable: {error}") from error
    delta = Delta({}, {})
    for name, values in tensors.items():
        if name.endswith(ROWS) or name.endswith(VALUES):
            table = name.removesuffix(ROWS).removesuffix(VALUES)
            if table in tables and table not in delta.rows:
                delta.rows[table] = _rows(path, table, tensors, weights[table])
                continue
            if table in delta.rows:
                continue
        elif name in weights and name not in tables:
            _check(path, name, values, weights[name].shape)
            delta.whole[name] = values
            continue
        raise ArtifactError(path, f"has {name}, which is no weight of the model")
    return delta


def _rows(
    path: Path, table: str, tensors: Arrays, now: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    try:
        rows, values = tensors[table + ROWS], tensors[table + VALUES]
    except KeyError as error:
        raise ArtifactError(path, f"lacks {error}") from error
    if rows.dtype != np.int64 or rows.ndim != 1 or not len(rows) or (rows[1:] <= rows[:-1]).any():
        raise ArtifactError(path, f"{table + ROWS} is {rows.dtype}{list(rows.shape)}, not ascending int64[n]")
    if not 1 <= rows[0] <= rows[-1] < len(now):
        problem = f"names rows {rows[0]} to {rows[-1]} of {table}"
        raise ArtifactError(path, f"{problem}; there are 1 to {len(now) - 1}: row 0 is none")
    _check(path, table + VALUES, values, (len(rows), *now.shape[1:]))
    return rows, values


def _check(path: Path, name: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    if values.dtype != np.float32 or values.shape != shape:
        found = f"{values.dtype}{list(values.shape)}"
        raise ArtifactError(path, f"{name} is {found}, the model has float32{list(shape)}")
    if not np.isfinite(values).all():
        raise ArtifactError(path, f"{name} has NaN or infinite values")
