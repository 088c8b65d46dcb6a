"""Names of what the pool holds: of a user's history at every item boundary, and of an item's tokens.

A user's hashes are keyed with the pool's own secret, so that neither an owner nor a history can be guessed from them:
BLAKE2 of owner, model and layout under the secret is the key of a SipHash over the tokens. Hash i is over everything
up to boundary i: two histories have it in common exactly as far as their tokens agree. An item's key is over the model
and the item's tokens alone, so that versions of a catalogue, and nodes, share what they can. Anybody can compute it:
two items agree by chance alone, as their tokens are the artifact's and no request's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genrec.errors import InputError
from genrec.pool.siphash import prefix_hashes, row_hashes

SIZE = 16  # bytes of a key
Words = NDArray[np.uint64]  # keys as the pool compares them: uint64 [n, 2]
Keys = Sequence[bytes] | Words


def owner_key(secret: bytes, user: int | None) -> bytes:
    """Who an entry belongs to, not in clear: 16 bytes. None is one owner for all who say no name."""
    name = b"" if user is None else int(user).to_bytes(16, "little", signed=True)
    return blake2b(name, digest_size=SIZE, key=secret, person=b"genrec-owner").digest()


def user_words(
    secret: bytes, model: str, layout: str, user: int | None, tokens: ArrayLike, item_tokens: int
) -> Words:
    """uint64 [S // item_tokens + 1, 2]: a key per item boundary of `tokens` int32[S]; the first is of no token yet.

    `model` and `layout` say which KV it is: another model's can never be found. Raises InputError.
    """
    given = _tokens(tokens, 1)
    if item_tokens < 1:
        raise InputError("item_tokens", f"is {item_tokens}", "at least 1")
    named = _named(model, layout) + owner_key(secret, user)
    root = blake2b(named, digest_size=SIZE, key=secret, person=b"genrec-user").digest()
    return prefix_hashes(words([root])[0], given, item_tokens)


def item_words(model: str, layout: str, tokens: ArrayLike) -> Words:
    """uint64 [C, 2]: a key for each item, by its `tokens` int32[C, t]. Raises InputError."""
    return row_hashes(_item_root(model, layout), _tokens(tokens, 2))


def words(keys: Keys) -> Words:
    """uint64 [n, 2]. Raises InputError where a key is not 16 bytes long."""
    if isinstance(keys, np.ndarray):
        return _plain(keys, np.uint64).reshape(-1, 2)
    joined = bytearray().join(keys)
    if len(joined) != SIZE * len(keys):
        raise InputError("keys", f"{len(keys)} keys have {len(joined)} bytes", f"{SIZE} bytes each")
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


@lru_cache(maxsize=64)
def _item_root(model: str, layout: str) -> NDArray[np.uint64]:
    return words([blake2b(_named(model, layout), digest_size=SIZE, person=b"genrec-item").digest()])[0]


@lru_cache(maxsize=64)
def _named(model: str, layout: str) -> bytes:
    """Each with its length, so that no pair of names reads like another pair."""
    parts = [part.encode() for part in (model, layout)]
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _tokens(tokens: ArrayLike, axes: int) -> NDArray[np.int32]:
    given = np.asarray(tokens)
    if given.ndim != axes or (given.size and given.dtype.kind not in "iu"):
        raise InputError("tokens", f"are {given.dtype} {list(given.shape)}", f"integers with {axes} axes")
    return _plain(given, np.int32)


def _plain(array: NDArray[Any], kind: type) -> NDArray[Any]:
    """One type and layout for the compiler. What has them already is passed on: to make sure of it takes long."""
    return array if array.dtype == kind and array.flags.carray else np.require(array, kind, ["C", "A", "W"])
