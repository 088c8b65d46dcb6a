"""NEZHA's draft head in NumPy: what a served draft computes per level (section 3.2, equations 1 to 3).

Measured against the same arithmetic as an OpenVINO graph, one BLAS thread was as fast at 512 beams and faster
below, so there is no engine here. What does not depend on the request is folded when the head is exported: the
input half of a GRU is a table with a row per code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.catalogue.validity import ValidityIndex
from genrec.draft.options import FORMAT, VERSION, DraftConfig, options_in
from genrec.errors import InputError
from genrec.models.config import ModelConfig
from genrec.tensor_file import read_tensors, readable

SPARSE = 10  # how much faster a multiply-add is in a GEMM than in single dot products

Array = NDArray[np.float32]


class Drafter:
    """The draft head of one generator. `states` is float32[1 + L, d] (h_0 .. h_L), d the hidden size.

    hidden_l [d, T_l], bias_l [T_l]   the part of equation 2 that reads h_l
    state_l  [d, T_l]                 the part that reads s_l; kept once, a row per code
    input_l  [T_l, 3d], recurrent_l [d, 3d], recurrent_bias_l [d]   the GRU; only input_l [T_l, d] when it adds
    """

    def __init__(
        self, config: ModelConfig, options: DraftConfig, tensors: Mapping[str, NDArray[Any]]
    ) -> None:
        """Raises InputError naming the tensor that is missing or of another shape."""
        self.config, self.options = config, options
        self.placeholders = options.placeholder_tokens(config)
        for name, shape in self._shapes().items():
            found = tensors.get(name)
            if found is None or found.shape != shape or found.dtype != np.float32:
                have = "is missing" if found is None else f"is {found.dtype}{list(found.shape)}"
                raise InputError(name, have, f"float32{list(shape)}")
        self._tensors = {name: np.ascontiguousarray(tensors[name]) for name in self._shapes()}
        self._rows: list[Array] = []  # state_l the other way round, a row per code
        if options.transition != "none":
            levels = range(1, config.levels + 1)
            self._rows = [np.ascontiguousarray(tensors[f"state_{level}"].T) for level in levels]
            self._tensors |= {
                f"state_{level}": rows.T for level, rows in zip(levels, self._rows, strict=True)
            }

    @classmethod
    def load(cls, path: Path, config: ModelConfig) -> Drafter:
        """Read what the export wrote. Raises ArtifactError."""
        with readable(path, "draft head"):
            metadata, tensors = read_tensors(path, FORMAT, VERSION)
            return cls(config, options_in(metadata), tensors)

    def start(self, states: Array) -> Array:
        """Equation 1: s_1 float32[1, d]; [1, 0] for a head without a state."""
        return states[:1, :0] if self.options.transition == "none" else states[:1]

    def logits(self, level: int, states: Array, state: Array) -> Array:
        """Equation 2: a row per beam, float32[W, T_level]."""
        fixed = self._fixed(level, states)
        if self.options.transition == "none":
            return np.tile(fixed, (len(state), 1))
        out: Array = state @ self._tensors[f"state_{level}"]
        out += fixed
        return out

    def valid_logits(
        self, level: int, states: Array, state: Array, nodes: NDArray[np.int32], index: ValidityIndex
    ) -> Array:
        """Equation 2 where it will be read: float32[W, T_level], set at the valid children of nodes int32[W] only.

        A catalogue fills a small part of W x T, so that few dot products do instead of a GEMM.
        """
        pointers, codes = index.children_into(level), index.codes[level - 1]
        children = int((pointers[nodes + 1] - pointers[nodes]).sum())
        size = self.config.codebook_sizes[level - 1]
        if self.options.transition == "none" or children * SPARSE > len(nodes) * size:
            return self.logits(level, states, state)
        out = np.empty((len(nodes), size), np.float32)
        _dot_children(state, self._rows[level - 1], self._fixed(level, states), nodes, pointers, codes, out)
        return out

    def _fixed(self, level: int, states: Array) -> Array:
        """The part of equation 2 that all beams share: float32[T_level]."""
        if f"hidden_{level}" not in self._tensors:
            return np.zeros(self.config.codebook_sizes[level - 1], np.float32)
        read = states[level if self.placeholders else 0]
        fixed: Array = read @ self._tensors[f"hidden_{level}"] + self._tensors[f"bias_{level}"]
        return fixed

    def advance(
        self, level: int, state: Array, parents: NDArray[np.int32], codes: NDArray[np.int64]
    ) -> Array:
        """Equation 3: s of the beams before [W', d], the beams' parents and codes of `level` [W] -> [W, d].

        The recurrent half of the GRU runs once per parent that still has a beam.
        """
        if self.options.transition == "none":
            return state[parents]
        fed = self._tensors[f"input_{level}"]
        if self.options.transition == "add":
            return state[parents] + fed[codes]
        beams, size = len(codes), state.shape[1]
        alive, row = np.unique(parents, return_inverse=True)
        carried = state[alive] @ self._tensors[f"recurrent_{level}"]
        carried[:, 2 * size :] += self._tensors[f"recurrent_bias_{level}"]
        gates, new = np.empty((beams, 2 * size), np.float32), np.empty((beams, size), np.float32)
        # NumPy's exp is vectorised, its tanh is not everywhere; exp(large) is inf, and 1 / inf the 0 it should be.
        with np.errstate(over="ignore"):
            _open_gates(fed, carried, codes, row, gates)
            np.exp(gates, out=gates)
            _propose(fed, carried, codes, row, gates, new)
            np.exp(new, out=new)
        _blend(state, parents, gates, new)
        return new

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        size = self.config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {}
        for level, codes in enumerate(self.config.codebook_sizes, 1):
            if self.options.placeholders or self.options.transition == "none":
                shapes[f"hidden_{level}"], shapes[f"bias_{level}"] = (size, codes), (codes,)
            if self.options.transition != "none":
                shapes[f"state_{level}"] = (size, codes)
            if level < self.config.levels and self.options.transition == "add":
                shapes[f"input_{level}"] = (codes, size)
            if level < self.config.levels and self.options.transition == "gru":
                shapes[f"input_{level}"] = (codes, 3 * size)
                shapes[f"recurrent_{level}"] = (size, 3 * size)
                shapes[f"recurrent_bias_{level}"] = (size,)
        return shapes


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _dot(a: Array, b: Array) -> Any:
    """Of float32[d] both, summed in any order: the freedom is what lets it use vectors."""
    total = np.float32(0.0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(cache=True, nogil=True)
def _dot_children(
    state: NDArray[Any], rows: NDArray[Any], fixed: NDArray[Any], nodes: NDArray[Any], pointers: NDArray[Any],
    codes: NDArray[Any], out: NDArray[Any],
) -> None:  # fmt: skip
    """out[w, c] = state[w] . rows[c] + fixed[c] for every child code c of nodes[w]; the rest of out stays."""
    for w in range(len(nodes)):
        for child in range(pointers[nodes[w]], pointers[nodes[w] + 1]):
            code = codes[child]
            out[w, code] = _dot(state[w], rows[code]) + fixed[code]


@njit(cache=True, nogil=True)
def _open_gates(
    fed: NDArray[Any], carried: NDArray[Any], codes: NDArray[Any], row: NDArray[Any], gates: NDArray[Any]
) -> None:
    """gates[w] float32[2d]: the reset and update gates' arguments, negated. fed [T, 3d], carried [P, 3d]."""
    for w in range(len(codes)):
        for j in range(gates.shape[1]):
            gates[w, j] = -(fed[codes[w], j] + carried[row[w], j])


@njit(cache=True, nogil=True)
def _propose(
    fed: NDArray[Any], carried: NDArray[Any], codes: NDArray[Any], row: NDArray[Any], gates: NDArray[Any],
    new: NDArray[Any],
) -> None:  # fmt: skip
    """new[w] float32[d]: -2 x of the new state tanh(x); gates hold exp(-argument)."""
    size = new.shape[1]
    for w in range(len(codes)):
        for j in range(size):
            reset = np.float32(1.0) / (np.float32(1.0) + gates[w, j])
            x = fed[codes[w], 2 * size + j] + reset * carried[row[w], 2 * size + j]
            new[w, j] = np.float32(-2.0) * x


@njit(cache=True, nogil=True)
def _blend(state: NDArray[Any], parents: NDArray[Any], gates: NDArray[Any], new: NDArray[Any]) -> None:
    """new[w] becomes (1 - update) * new + update * the parent's state; on entry it is exp(-2 x)."""
    size = new.shape[1]
    for w in range(len(new)):
        for j in range(size):
            update = np.float32(1.0) / (np.float32(1.0) + gates[w, size + j])
            fresh = np.float32(2.0) / (np.float32(1.0) + new[w, j]) - np.float32(1.0)
            new[w, j] = fresh + update * (state[parents[w], j] - fresh)
