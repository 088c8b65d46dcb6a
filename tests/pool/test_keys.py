"""Keys agree as far as tokens do, and in nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import InputError
from genrec.pool.keys import item_words, owner_key, user_words, words

SECRET = bytes(range(32))


def hashes(tokens, user=7, step=3, secret=SECRET, model="m", layout="l"):
    rows = user_words(secret, model, layout, user, np.array(tokens, np.int32), step)
    return [row.tobytes() for row in rows]


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=20), st.integers(1, 4))
def test_two_histories_have_as_many_hashes_in_common_as_whole_items(one, other, step):
    common = 0
    while min(len(one), len(other)) >= common + step and one[: common + step] == other[: common + step]:
        common += step
    a, b = hashes(one, step=step), hashes(other, step=step)
    assert len(a) == len(one) // step + 1
    assert [x == y for x, y in zip(a, b, strict=False)].count(True) == common // step + 1
    assert set(a) & set(b) == set(a[: common // step + 1])


def test_another_model_layout_user_or_secret_has_nothing_in_common():
    mine = hashes([1, 2, 3])
    others = [
        hashes([1, 2, 3], user=8),
        hashes([1, 2, 3], user=None),
        hashes([1, 2, 3], user=0),
        hashes([1, 2, 3], secret=bytes(32)),
        hashes([1, 2, 3], model="n"),
        hashes([1, 2, 3], layout="k"),
        hashes([1, 2, 3], model="ml", layout=""),
    ]
    seen = set(mine)
    for other in others:
        assert not seen & set(other)
        seen |= set(other)
    assert hashes([1, 2, 3]) == mine


def test_nothing_of_a_user_is_in_the_clear():
    assert owner_key(SECRET, 7) != owner_key(bytes(32), 7)
    assert owner_key(SECRET, None) not in {owner_key(SECRET, user) for user in range(-3, 4)}
    assert len({owner_key(SECRET, user) for user in (-(2**63), -1, 0, 1, 2**63 - 1)}) == 5


def item_keys(tokens, model="m", layout="l"):
    return [row.tobytes() for row in item_words(model, layout, tokens)]


def test_items_of_equal_tokens_share_a_key():
    rows = np.array([[1, 2, 3], [1, 2, 4], [1, 2, 3]], np.int64)
    first, second, third = item_keys(rows)
    assert first == third != second and first == item_keys([[1, 2, 3]])[0]
    others = [
        ([[1, 2, 3, 0]], "m", "l"),
        ([[1, 2]], "m", "l"),
        ([[1, 2, 3]], "n", "l"),
        ([[1, 2, 3]], "m", "k"),
    ]
    assert first not in [item_keys(*other)[0] for other in others]


def test_words_are_the_keys():
    keys = item_keys(np.arange(12).reshape(4, 3))
    assert words(keys).tobytes() == b"".join(keys)
    assert words(words(keys)).tolist() == words(keys).tolist()
    assert words([]).shape == (0, 2)


def test_what_is_no_history_is_refused():
    for tokens, step in (([[1]], 1), ([1.5], 1), ([1], 0)):
        with pytest.raises(InputError):
            user_words(SECRET, "m", "l", 1, tokens, step)
    with pytest.raises(InputError, match="2 keys have 31 bytes"):
        words([bytes(16), bytes(15)])
