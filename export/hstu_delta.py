"""`genrec export --delta`: of an HSTU ranker that was trained further, what has changed since it was exported.

A row of a table is written where one of its numbers is another, any other weight whole where one is. What serves is the
export with all deltas before; a server takes the new one in while it answers.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genrec.errors import ArtifactError, InputError
from genrec.files import scratch_in
from genrec.manifest import making, record, recorded
from genrec.rank.deltas import (
    FILE,
    FOLDER,
    FORMAT,
    ROWS,
    STAGE,
    VALUES,
    VERSION,
    Arrays,
    check_next,
    folder_of,
)
from genrec.rank.hstu import CONFIG, EXPORTED, FEATURES, WEIGHTS, HstuConfig
from genrec.rank.hstu_weights import CODES_OF_ITEMS, OF_RATINGS, HstuWeights, load_weights, with_next
from genrec.rank.user_features import load_numbers
from genrec.tensor_file import mapped_tensors, read_plain_metadata, readable, write_tensors
from genrec.words import command


class Written(NamedTuple):
    """A delta's number; of every table that has others, how many rows of how many; other weights; bytes of both."""

    number: int
    rows: dict[str, tuple[int, int]]
    whole: int
    bytes: int
    model_bytes: int

    def __str__(self) -> str:
        parts = [f"{some} of {all_} rows of {name.split('.')[0]}" for name, (some, all_) in self.rows.items()]
        parts += [f"{self.whole} other weights"] if self.whole else []
        return (
            f"delta {self.number}: {', '.join(parts)}; {self.bytes} bytes, the model has {self.model_bytes}"
        )


def export_delta(artifact: Path) -> Written | None:
    """Write `deltas/<n>/`, which appears whole or not at all; None where nothing has changed.

    Raises InputError where there is no export to change, ArtifactError naming what does not fit it.
    """
    exported = recorded(artifact, f"onnx/{EXPORTED}")
    base, path = _served(artifact), artifact / "model" / WEIGHTS
    now = mapped_tensors(path)
    _check(artifact, base, now)
    tensors: Arrays = {}
    rows: dict[str, tuple[int, int]] = {}
    whole = 0
    for name, was in base.arrays.items():
        if name in OF_RATINGS.tables:
            changed = np.flatnonzero((now[name] != was).any(1))
            if len(changed):
                tensors |= {name + ROWS: changed, name + VALUES: now[name][changed]}
                rows[name] = len(changed), len(was) - 1
        elif not np.array_equal(now[name], was):
            tensors[name], whole = np.array(now[name]), whole + 1
    if not tensors:
        return None
    number = base.delta + 1
    size = _write(artifact, number, base.name, tensors, {"rows": rows, "whole": whole}, exported)
    return Written(number, rows, whole, size, path.stat().st_size)


def _served(artifact: Path) -> HstuWeights:
    """The export with all deltas that there are."""
    if not (artifact / "onnx" / EXPORTED).is_file():
        problem = f"has nothing to change: onnx/{EXPORTED} is not there"
        raise InputError(
            "delta",
            problem,
            "an artifact whose hstu-ranker was exported by `genrec export`; hstu-next has no deltas",
        )
    weights = load_weights(artifact)
    while folder_of(artifact, weights.delta + 1).exists():
        weights = with_next(artifact, weights)
    check_next(artifact, weights.delta + 1)
    return weights


def _check(artifact: Path, base: HstuWeights, now: Arrays) -> None:
    path, again = artifact / "model" / WEIGHTS, f"; {command('export', artifact)} exports it anew"
    said = read_plain_metadata(artifact / "onnx" / EXPORTED).get("config")
    config = HstuConfig.load(artifact / "model" / CONFIG)
    was = {}
    if said:  # exports of before a field was there have its default
        with readable(artifact / "onnx" / EXPORTED, "safetensors file"):
            was = _plain(HstuConfig.from_json(json.loads(said), artifact / "onnx" / EXPORTED))
    for name, value in _plain(config).items():
        if was.get(name) != value:
            problem = f"has {name} {value}, the model that was exported has {was.get(name)}{again}"
            raise ArtifactError(artifact / "model" / CONFIG, problem)
    known = [artifact / folder / FEATURES for folder in ("onnx", "model")]
    # A server that runs has those that were exported; exports of before had none.
    if known[0].exists() and load_numbers(known[0].parent) != load_numbers(known[1].parent):
        problem = "numbers values of features otherwise than the model that was exported"
        raise ArtifactError(known[1], f"{problem}{again}")
    for name, values in base.arrays.items():
        if name not in now or now[name].shape != values.shape:
            found = f"{list(now[name].shape)}" if name in now else "nothing"
            raise ArtifactError(path, f"{name} is {found}, it was exported as {list(values.shape)}{again}")
        if name != CODES_OF_ITEMS and not np.isfinite(now[name]).all():
            raise ArtifactError(path, f"{name} has NaN or infinite values")
        if name in OF_RATINGS.tables and now[name][0].any():
            raise ArtifactError(path, f"{name} has numbers in row 0, which stands for none")
    if not np.array_equal(now[CODES_OF_ITEMS], base.arrays[CODES_OF_ITEMS]):
        raise ArtifactError(path, f"is of another catalogue: items have other codes{again}")


def _plain(config: HstuConfig) -> dict[str, Any]:
    """As JSON has it."""
    return dict(json.loads(json.dumps(asdict(config))))


def _write(
    artifact: Path, number: int, base: str, tensors: Arrays, facts: dict[str, object], exported: str | None
) -> int:
    """The bytes of the tensors' file. Raises ArtifactError where another export is there than was `exported`."""
    (artifact / FOLDER).mkdir(exist_ok=True)
    with scratch_in(artifact / FOLDER) as scratch:
        folder = scratch / str(number)
        folder.mkdir()
        write_tensors(folder / FILE, tensors, {"format": FORMAT, "version": VERSION})
        size = (folder / FILE).stat().st_size
        record(folder, STAGE, base, [folder / FILE], {"number": number, "bytes": size, **facts})
        with making(artifact, "export"):  # which removes deltas
            if recorded(artifact, f"onnx/{EXPORTED}") != exported:
                problem = "was made anew by another process meanwhile; run this again"
                raise ArtifactError(artifact / "onnx" / EXPORTED, problem)
            try:
                folder.rename(folder_of(artifact, number))
            except OSError as error:  # another process was faster
                problem = f"cannot be put in place: {error.strerror}"
                raise ArtifactError(folder_of(artifact, number), problem) from error
    return size
