"""Features, and the tables they share without anyone saying how (MTGRBoost, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genrec.errors import InputError
from training.embedding.arrays import Int64


@dataclass(frozen=True)
class FeatureConfig:
    """A feature. Features that name the same `table` share its rows: an item in the history and as a candidate."""

    name: str
    table: str
    dimension: int

    def __post_init__(self) -> None:
        if not self.name or not self.table:
            raise InputError(
                "feature", f"is {self.name!r} of table {self.table!r}", "names that are not empty"
            )
        if self.dimension < 1:
            raise InputError(f"dimension of {self.name}", f"is {self.dimension}", "at least 1")


@dataclass(frozen=True)
class MergedTable:
    """Tables of one dimension as one: an id has its table's number in the bits below the sign.

    Equation 8, as it is printed: of m tables, k = ceil(log2(m + 1)) bits; id = number << (63 - k) | raw id, numbers
    from 0. (The text's example halves offsets, which fits neither the equation nor ids of 61 bits.)
    """

    dimension: int
    tables: tuple[str, ...]

    @property
    def id_bits(self) -> int:
        """Bits that are left for a raw id."""
        return 63 - len(self.tables).bit_length()  # ceil(log2(m + 1))

    def pack(self, feature: FeatureConfig, ids: Int64) -> Int64:
        """Raw ids int64[n] to merged ones. Raises InputError for those that would run into another table."""
        if ids.dtype != np.int64 or ids.ndim != 1:
            problem = f"is {ids.dtype} of shape {list(ids.shape)}"
            raise InputError(feature.name, problem, "int64 of one axis")
        if len(ids) and (ids.min() < 0 or ids.max() >= 1 << self.id_bits):
            wrong = int(ids.min() if ids.min() < 0 else ids.max())
            raise InputError(feature.name, f"has id {wrong}", f"0 to {(1 << self.id_bits) - 1}")
        return ids | np.int64(self.tables.index(feature.table) << self.id_bits)

    def unpack(self, ids: Int64) -> tuple[Int64, Int64]:
        """Merged ids int64[n] to numbers of tables and raw ids."""
        return ids >> self.id_bits, ids & np.int64((1 << self.id_bits) - 1)


def merge(features: Sequence[FeatureConfig]) -> list[MergedTable]:
    """One table per dimension, by dimension; its tables in the order in which features name them.

    Raises InputError for two features of one name and for a table of two dimensions.
    """
    names = [feature.name for feature in features]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError("features", f"has {twice[0]!r} twice", "distinct names")
    sizes: dict[str, int] = {}
    for feature in features:
        if sizes.setdefault(feature.table, feature.dimension) != feature.dimension:
            problem = f"is {feature.dimension}, but its table {feature.table!r} has {sizes[feature.table]}"
            raise InputError(f"dimension of {feature.name}", problem, "one dimension per table")
    return [
        MergedTable(size, tuple(table for table in sizes if sizes[table] == size))
        for size in sorted(set(sizes.values()))
    ]
