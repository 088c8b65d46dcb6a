"""SipHash-2-4 with 128 bits (Aumasson and Bernstein, 2012) of every prefix of a sequence, or of many short ones.

A keyed hash: who does not know the key can neither guess a hash nor make two agree. Five hundred prefixes take some
30 us; a call of hashlib for each takes twenty times that, a visible share of a request.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

State = tuple[np.uint64, np.uint64, np.uint64, np.uint64]
TOKEN_BYTES = 4


@njit(cache=True, nogil=True)
def prefix_hashes(key: NDArray[np.uint64], tokens: NDArray[np.int32], step: int) -> NDArray[np.uint64]:
    """uint64[S // step + 1, 2]: row i hashes the first i * step of `tokens` int32[S], little endian."""
    hashes = np.empty((len(tokens) // step + 1, 2), np.uint64)
    state, read = _begun(key), 0
    for i in range(len(hashes)):
        state, read = _read(state, tokens, read, i * step)
        hashes[i, 0], hashes[i, 1] = _ended(state, tokens, read, i * step)
    return hashes


@njit(cache=True, nogil=True)
def row_hashes(key: NDArray[np.uint64], tokens: NDArray[np.int32]) -> NDArray[np.uint64]:
    """uint64[C, 2]: the hash of each row of `tokens` int32[C, t], little endian."""
    hashes, count = np.empty((len(tokens), 2), np.uint64), tokens.shape[1]
    for i in range(len(hashes)):
        state, read = _read(_begun(key), tokens[i], 0, count)
        hashes[i, 0], hashes[i, 1] = _ended(state, tokens[i], read, count)
    return hashes


@njit(cache=True, nogil=True)
def _begun(key: NDArray[np.uint64]) -> State:
    return (
        key[0] ^ np.uint64(0x736F6D6570736575),
        key[1] ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE),
        key[0] ^ np.uint64(0x6C7967656E657261),
        key[1] ^ np.uint64(0x7465646279746573),
    )


@njit(cache=True, nogil=True)
def _read(state: State, tokens: NDArray[np.int32], read: int, count: int) -> tuple[State, int]:
    """The state behind the first `count` tokens, two by two, and how many those are; it had read `read` of them."""
    while read + 2 <= count:
        state = _absorb(state, _word(tokens[read]) | _word(tokens[read + 1]) << np.uint64(32))
        read += 2
    return state, read


@njit(cache=True, nogil=True)
def _ended(state: State, tokens: NDArray[np.int32], read: int, count: int) -> tuple[np.uint64, np.uint64]:
    """The hash of `count` tokens, of which `read` are in the state: all but one at most."""
    rest = _word(tokens[read]) if read < count else np.uint64(0)
    return _finish(state, rest | np.uint64(count * TOKEN_BYTES) << np.uint64(56))


@njit(cache=True, nogil=True)
def _word(token: np.int32) -> np.uint64:
    return np.uint64(np.uint32(token))


@njit(cache=True, nogil=True)
def _absorb(state: State, word: np.uint64) -> State:
    a, b, c, d = _round(_round((state[0], state[1], state[2], state[3] ^ word)))
    return a ^ word, b, c, d


@njit(cache=True, nogil=True)
def _finish(state: State, last: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The hash: the last word has the rest of the bytes and, on top, how many there were in all, modulo 256."""
    a, b, c, d = _absorb(state, last)
    a, b, c, d = _round(_round(_round(_round((a, b, c ^ np.uint64(0xEE), d)))))
    first = a ^ b ^ c ^ d
    a, b, c, d = _round(_round(_round(_round((a, b ^ np.uint64(0xDD), c, d)))))
    return first, a ^ b ^ c ^ d


@njit(cache=True, nogil=True)
def _round(state: State) -> State:
    a, b, c, d = state
    a += b
    b = _turned(b, 13) ^ a
    a = _turned(a, 32)
    c += d
    d = _turned(d, 16) ^ c
    a += d
    d = _turned(d, 21) ^ a
    c += b
    b = _turned(b, 17) ^ c
    c = _turned(c, 32)
    return a, b, c, d


@njit(cache=True, nogil=True)
def _turned(word: np.uint64, bits: int) -> np.uint64:
    return word << np.uint64(bits) | word >> np.uint64(64 - bits)
