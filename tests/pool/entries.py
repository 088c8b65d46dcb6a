"""What the pool's tests write and read."""

import os

import numpy as np

from genrec.pool.keys import item_words, owner_key, user_words

STEP = 3  # tokens of an item


def hashes(pool, user, items):
    """Of a history of `items`, each of STEP tokens."""
    return user_words(pool.secret, "model", "layout", user, np.repeat(np.array(items, np.int32), STEP), STEP)


def write(pool, user, items, size=1000, fill=None):
    """A committed entry whose bytes are all `fill` (the user's number), or None."""
    writing = pool.write_user(
        hashes(pool, user, items), len(items) * STEP, size, owner_key(pool.secret, user)
    )
    if writing:
        writing.memory[:] = user % 251 if fill is None else fill
        pool.commit(writing)
    return writing


def find(pool, user, items):
    """(tokens that agree, span, the byte it was filled with), released at once; or None."""
    entry = pool.find_user(hashes(pool, user, items), STEP)
    if entry is None:
        return None
    values = np.unique(entry.memory)
    assert len(values) == 1, "the bytes of two entries"
    pool.release(entry)
    return entry.tokens, entry.span, int(values[0])


def in_a_child(work):
    """Whether it is true in a forked process, the end of which would be the test's. None goes on with the tests."""
    child = os.fork()
    if not child:
        wrong = True
        try:
            wrong = not work()
        finally:
            os._exit(wrong)
    return os.waitpid(child, 0)[1] == 0


def keys(*items):
    tokens = np.repeat(np.array(items, np.int32)[:, None], STEP, 1)
    return [row.tobytes() for row in item_words("model", "layout", tokens)]
