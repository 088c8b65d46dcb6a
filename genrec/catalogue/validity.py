"""Which codes may follow a path: the catalogue's semantic IDs as a flat tree.

xGR section 6.1 keeps a dense mask for the first level and sparse positions for the deeper ones. Here the
sparse part is a tree in arrays. The nodes of level l are the distinct paths of l codes, in lexicographic
order, so the children of a node are a contiguous range of level l+1, its leaves a contiguous range of level
L, and its items a contiguous range of `rows`. Nothing of size W x T or P x T is ever made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genrec.catalogue.answerable import Choice, Listed, listed
from genrec.catalogue.blocked import Base, Blocked, above, ways_to
from genrec.catalogue.groups import Groups
from genrec.catalogue.remembered import Remembered
from genrec.catalogue.semantic_id import check_sizes, pack
from genrec.errors import ArtifactError, InputError
from genrec.tensor_file import read_tensors, readable, write_tensors

FORMAT, VERSION = "genrec-validity", "1"

_NOTHING = np.zeros(0, np.int32)

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class ValidityIndex:
    """The tree of valid semantic IDs of a catalogue of n items. Immutable, and always sound once made.

    codebook_sizes  (T_1, ..., T_L)
    codes[l-1]      uint16 or int32 [P_l], the last code of every node of level l
    first_child[l-1] int32 [P_l + 1], children of node p are first_child[p] .. first_child[p + 1] of level
                    l+1; at level L (the leaves) they are positions in `rows`
    rows            int32 [n], catalogue rows, of a leaf the most popular first, then the smaller item id
    row_leaf        int32 [n], the leaf of a catalogue row
    root            int32 [2], the range of level 1: the root as if it were a level of one node
    """

    def __init__(
        self, codebook_sizes: Sequence[int], codes: Sequence[Array], first_child: Sequence[Array], rows: Array
    ) -> None:
        """Check everything that compiled code relies on; InputError says which array breaks which rule."""
        self.codebook_sizes = check_sizes(codebook_sizes)
        _check_tree(self.codebook_sizes, codes, first_child, rows)
        self.codes = tuple(frozen(c) for c in codes)
        self.first_child: tuple[Int32, ...] = tuple(frozen(f) for f in first_child)
        self.rows: Int32 = frozen(rows)
        self.root: Int32 = frozen(np.array([0, len(codes[0])], np.int32))
        leaf = np.empty(len(rows), np.int32)
        leaf[rows] = np.repeat(
            np.arange(self.node_count(self.levels), dtype=np.int32), np.diff(first_child[-1])
        )
        self.row_leaf: Int32 = frozen(leaf)
        self.groups = Groups((), (), len(rows))

    @classmethod
    def build(
        cls, codes: npt.ArrayLike, sizes: Sequence[int], popularity: npt.ArrayLike, item_ids: npt.ArrayLike
    ) -> ValidityIndex:
        """Index a catalogue: codes int[n, L], sizes (T_1..T_L), popularity int[n] >= 0, item_ids int64[n]."""
        sizes = check_sizes(sizes)
        keys = pack(codes, sizes)
        count, ids = np.asarray(popularity), np.asarray(item_ids)
        if keys.ndim != 1 or not 0 < len(keys) < 2**31:
            raise InputError("codes", f"describe an array of {keys.shape} items", "1 to 2**31 - 1 items")
        for name, column in (("popularity", count), ("item_ids", ids)):
            if column.shape != keys.shape or column.dtype.kind not in "iu":
                have = f"is {column.dtype}{list(column.shape)}"
                raise InputError(name, have, f"an integer for each of {len(keys)} items")
        if int(count.min()) < 0:  # so that the sort below may negate it
            raise InputError("popularity", f"has {count.min()}", "counts >= 0")
        rows = np.lexsort((ids, -count.astype(np.int64), keys))
        nodes, starts = _runs(keys[rows])
        levels_codes: list[Array] = []
        levels_first = [starts]
        for size in reversed(sizes):  # from the leaves up: a parent's key is the quotient of its children's
            parents, digits = np.divmod(nodes, size)
            levels_codes.insert(0, digits.astype(_code_type(size)))
            nodes, starts = _runs(parents)
            levels_first.insert(0, starts)
        return cls(sizes, levels_codes, levels_first[1:], rows.astype(np.int32))

    @property
    def groups(self) -> Groups:
        """Named groups of its items; `genrec.catalogue.indices` reads them."""
        return self._groups

    @groups.setter
    def groups(self, groups: Groups) -> None:
        self._groups = groups
        # Not of a method: see `Groups`
        base = partial(_base_of_choice, groups, self.row_leaf, self.first_child)
        self._base = Remembered(base, lambda base: (base.leaves, *base.nodes))

    @property
    def levels(self) -> int:
        """L."""
        return len(self.codebook_sizes)

    @property
    def items(self) -> int:
        """Number of catalogue rows."""
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of every array, in memory."""
        arrays = (*self.codes, *self.first_child, self.rows, self.row_leaf, self.root)
        return sum(a.nbytes for a in arrays)

    def node_count(self, level: int) -> int:
        """P_l; at level L the number of distinct semantic IDs."""
        return len(self.codes[level - 1])

    def children_into(self, level: int) -> Int32:
        """Pointers from the nodes of level-1 into `level`: int32[P_{level-1} + 1]; level 1 has the root."""
        return self.root if level == 1 else self.first_child[level - 2]

    def paths(self, level: int) -> Int64:
        """The mixed-radix integer of every node of a level, ascending: int64[P_l]. At L: the semantic IDs."""
        out = np.zeros(1, np.int64)
        for below in range(1, level + 1):
            out = np.repeat(out, np.diff(self.children_into(below))) * self.codebook_sizes[below - 1]
            out += self.codes[below - 1]
        return out

    def blocked(self, rows: npt.ArrayLike) -> Blocked:
        """Prune excluded catalogue rows, int[any], or all but some (see `listed`), exactly. InputError out of range.

        A beam that avoids blocked nodes always has somewhere to go.
        """
        given = self.listed(rows)
        if given.choice is None:
            return _base_of(given, self.row_leaf, self.first_child).and_above(_NOTHING, self.first_child)
        open_rows = given.rows[self.groups.listed(given.choice).allows(given.rows)]
        return self._base(given.choice).and_above(np.sort(self.row_leaf[open_rows]), self.first_child)

    def listed(self, rows: npt.ArrayLike) -> Listed:
        """`rows`, int[any], held against this catalogue. Raises InputError."""
        return listed(rows, self.items, len(self.groups))

    def save(self, path: Path) -> None:
        """Write one safetensors file; row_leaf follows from the rest."""
        tensors = {f"codes_{level}": codes for level, codes in enumerate(self.codes, 1)}
        tensors |= {f"first_child_{level}": first for level, first in enumerate(self.first_child, 1)}
        tensors["rows"] = self.rows
        sizes = json.dumps(self.codebook_sizes)
        metadata = {"format": FORMAT, "version": VERSION, "codebook_sizes": sizes}
        metadata["sha256"] = _digest(sizes, tensors)
        write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: Path, codebook_sizes: Sequence[int] | None = None) -> ValidityIndex:
        """Read what `save` wrote. ArtifactError if it is corrupt, or not of `codebook_sizes` when given."""
        with readable(path, "validity index"):
            metadata, tensors = read_tensors(path, FORMAT, VERSION)
            sizes = check_sizes(json.loads(metadata["codebook_sizes"]))
            if codebook_sizes is not None and sizes != tuple(codebook_sizes):
                wanted = list(codebook_sizes)
                raise ArtifactError(path, f"has codebook sizes {list(sizes)}, expected {wanted}")
            if metadata.get("sha256") != _digest(metadata["codebook_sizes"], tensors):
                raise ArtifactError(path, "does not match its own checksum")
            numbers = range(1, len(sizes) + 1)
            codes = [tensors[f"codes_{n}"] for n in numbers]
            return cls(sizes, codes, [tensors[f"first_child_{n}"] for n in numbers], tensors["rows"])


def frozen(array: Array, kind: type[np.generic] | None = None) -> Array:
    """A contiguous read-only array, of a `kind`: one type for the compiler, whether built, loaded or mapped."""
    view = np.ascontiguousarray(array, kind).view()
    view.flags.writeable = False
    return view


def _base_of_choice(groups: Groups, row_leaf: Int32, first_child: tuple[Int32, ...], choice: Choice) -> Base:
    return _base_of(groups.listed(choice), row_leaf, first_child)


def _base_of(given: Listed, row_leaf: Int32, first_child: tuple[Int32, ...]) -> Base:
    """What a list of rows leaves of the tree."""
    leaves = np.sort(row_leaf[given.rows])
    return Base(given.alone, leaves, (ways_to if given.alone else above)(leaves, first_child))


def _code_type(size: int) -> type[np.generic]:
    return np.uint16 if size <= 2**16 else np.int32


def _runs(keys: Int64) -> tuple[Int64, Int32]:
    """Distinct values of sorted keys, int64[P], and where each begins, int32[P + 1] with the end."""
    begins = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    return keys[begins], np.append(begins, len(keys)).astype(np.int32)


def _digest(sizes: str, tensors: dict[str, Array]) -> str:
    """sha256 over sizes, names, types, shapes and contents: an accident anywhere is seen."""
    sha = hashlib.sha256(sizes.encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        sha.update(f"{name} {array.dtype.str} {array.shape}".encode())
        sha.update(array.data)
    return sha.hexdigest()


def _check_tree(
    sizes: tuple[int, ...], codes: Sequence[Array], first_child: Sequence[Array], rows: Array
) -> None:
    """Every rule of the layout. Compiled code does not check bounds: a hostile file must stop here."""

    def need(rule: bool, name: str, limit: str) -> None:
        if not rule:
            raise InputError(name, "breaks the layout", limit)

    need(len(codes) == len(first_child) == len(sizes), "codes", f"{len(sizes)} levels")
    need(rows.dtype == np.int32 and rows.ndim == 1, "rows", "int32[n]")
    siblings = np.zeros(1, np.int64)  # where a family begins in the level at hand: at level 1 there is one
    for level, (size, code, first) in enumerate(zip(sizes, codes, first_child, strict=True), 1):
        need(
            code.dtype == _code_type(size) and code.ndim == 1 and code.size > 0,
            f"codes_{level}",
            "its integer type",
        )
        need(int(code.min()) >= 0 and int(code.max()) < size, f"codes_{level}", f"0 to {size - 1}")
        ascending = code[1:] > code[:-1]
        ascending[siblings[1:] - 1] = True  # the first of a family may have any code
        need(bool(ascending.all()), f"codes_{level}", "ascending codes in every family")
        below = len(codes[level]) if level < len(sizes) else len(rows)
        need(
            first.dtype == np.int32 and first.shape == (len(code) + 1,),
            f"first_child_{level}",
            "int32[P + 1]",
        )
        need(int(first[0]) == 0 and int(first[-1]) == below, f"first_child_{level}", f"spans 0 to {below}")
        need(bool((first[1:] > first[:-1]).all()), f"first_child_{level}", "at least one child each")
        siblings = first[:-1]
    need(int(rows.min()) >= 0 and int(rows.max()) < len(rows), "rows", f"0 to {len(rows) - 1}")
    need(int(np.bincount(rows).max()) == 1, "rows", "every catalogue row once")
