"""The weights of an exported HSTU ranker, which are inputs of its graphs, and deltas.

Tables of rows are mapped: what nobody changed is in memory once, whatever versions and processes have it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from genrec import manifest
from genrec.errors import ArtifactError
from genrec.manifest import digest_file
from genrec.rank.deltas import check_base, name_of, read_delta
from genrec.rank.hstu import HstuConfig, HstuKind
from genrec.tensor_file import mapped_tensors
from genrec.words import command

OF_RATINGS = HstuConfig.kind
CODES_OF_ITEMS = "codes"  # no weight: rows of codes by item, which say of which catalogue the model is


class HstuWeights(NamedTuple):
    """`arrays` by torch's names; `name` is another for other weights; `delta` is the number of the last delta in it."""

    arrays: dict[str, NDArray[Any]]
    name: str
    delta: int


def load_weights(
    artifact: Path, deltas: int = 0, export: str = "", kind: HstuKind = OF_RATINGS
) -> HstuWeights:
    """As exported, with deltas 1 to `deltas` taken in; `export`: the name that the export must have.

    Raises ArtifactError naming the file that is not sound.
    """
    weights = _exported(artifact, kind)
    if export and weights.name != export:
        problem = "is another export than the one that is served: start the server again"
        raise ArtifactError(artifact / "onnx" / kind.exported, problem)
    for _ in range(deltas):
        weights = with_next(artifact, weights)
    return weights


def _exported(artifact: Path, kind: HstuKind) -> HstuWeights:
    file = f"onnx/{kind.exported}"
    # Every start verifies what is recorded, so that no process need read the weights for their name.
    name = manifest.recorded(artifact, file) or digest_file(artifact / file)
    arrays = mapped_tensors(artifact / file)
    if missing := [each for each in (*kind.tables, CODES_OF_ITEMS) if each not in arrays]:
        raise ArtifactError(
            artifact / file, f"has no {missing[0]}; {command('export', artifact)} makes it anew"
        )
    return HstuWeights(arrays, name, 0)


def with_next(artifact: Path, weights: HstuWeights) -> HstuWeights:
    """`weights` with the next delta in them; they are used up. Raises ArtifactError, before it changes any."""
    number = weights.delta + 1
    folder = check_base(artifact, number, weights.name)
    name = name_of(weights.name, folder)
    delta = read_delta(folder, weights.arrays, OF_RATINGS.tables)
    if name_of(weights.name, check_base(artifact, number, weights.name)) != name:
        raise ArtifactError(folder, "was put in place anew while it was read")
    for table, (rows, values) in delta.rows.items():
        weights.arrays[table][rows] = values
    return HstuWeights({**weights.arrays, **delta.whole}, name, number)
