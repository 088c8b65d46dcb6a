"""SipHash against the reference's own vectors, and every prefix and row against a hash of that alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.pool.siphash import prefix_hashes, row_hashes

MASK = 2**64 - 1
KEY = np.frombuffer(bytes(range(16)), np.uint64)


def siphash128(key, message):
    """As the paper and the reference code write it, a byte string at a time."""
    k0, k1 = key
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def turn(x, n):
        return (x << n | x >> (64 - n)) & MASK

    def rounds(n):
        for _ in range(n):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[2] = turn(v[2], 32)

    whole = len(message) // 8 * 8
    last = message[whole:] + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    for at in range(0, whole + 8, 8):
        word = int.from_bytes((message[:whole] + last)[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


@pytest.mark.parametrize(
    ("size", "hexadecimal"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (4, "f88164c12d9c8faf7d0f6e7c7bcd5579"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
    ],
)
def test_equals_the_reference_vectors(size, hexadecimal):
    """vectors_sip128 of github.com/veorq/SipHash: key 00..0f, message 00, 01, ..."""
    tokens = np.frombuffer(bytes(range(size)), np.int32)
    assert prefix_hashes(KEY, tokens, 1)[-1].tobytes().hex() == hexadecimal


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(st.integers(0, MASK), st.integers(0, MASK)),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=80),
    st.integers(1, 5),
)
def test_every_prefix_equals_its_own_hash(key, tokens, step):
    raw = np.array(tokens, np.int32)
    found = prefix_hashes(np.array(key, np.uint64), raw, step)
    assert len(found) == len(tokens) // step + 1
    for i, row in enumerate(found.tolist()):
        assert tuple(row) == siphash128(key, raw[: i * step].tobytes())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 4), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_every_row_equals_its_own_hash(rows, count, seed):
    tokens = np.random.default_rng(seed).integers(-(2**31), 2**31, (rows, count)).astype(np.int32)
    found = row_hashes(KEY, tokens).tolist()
    assert [tuple(row) for row in found] == [siphash128(KEY.tolist(), row.tobytes()) for row in tokens]
