"""Users' entries that are computed in parts: nothing that lay in their place before is left in what is read."""

import numpy as np

from genrec.artifact import load_config
from genrec.engine.rank_users import RankUsers
from genrec.kv.entries import EntryLayout


class Passes:
    """KV of every token is 1."""

    def entries(self, tokens, kv):
        for each in kv:
            each[:] = 1

    def extend(self, tokens, past, kv, new):
        assert all((each[:, :, :past] == 1).all() for each in kv)
        self.entries(tokens, new)


def test_the_room_behind_an_entry_is_empty(tiny):
    config = load_config(tiny)
    layout = EntryLayout(config, config.levels, "f32", config.levels)
    users, end = RankUsers(Passes(), layout, "model"), 3 * config.levels
    room = layout.span(end)
    assert room > end
    memory = np.full(layout.user_bytes(room), 255, np.uint8)  # NaN, as float32
    kv = layout.user(memory, room)
    for past, to in ((0, config.levels), (config.levels, end)):
        users.fill(np.arange(end, dtype=np.int32), kv, past, to)
    for each in kv:
        assert (each[:, :, :end] == 1).all() and (each[:, :, end:] == 0).all()
