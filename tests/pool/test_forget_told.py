"""What `genrec pool forget` says that it deleted, where other processes hold the table now and then, or have died."""

import argparse
import os

import pytest

from cli import pool as command
from genrec.errors import ArtifactError
from genrec.pool import forget
from genrec.pool.keys import owner_key
from genrec.pool.pool import Pool
from tests.pool.entries import write


@pytest.mark.parametrize("piece", [1000, 1 << 20])
def test_what_was_deleted_is_told_though_the_table_was_busy_behind_it(folder, monkeypatch, piece):
    """It is cleared in pieces, and others have the table between them."""
    pool, had, asked_for = Pool(folder), Pool.locked, []
    write(pool, 7, [1])
    write(pool, 7, [2])

    def busy(self, work, otherwise):
        """For the first, and for the first that clears."""
        asked_for.append(work)
        return otherwise if len(asked_for) in (1, 3) else had(self, work, otherwise)

    monkeypatch.setattr(forget, "PIECE", piece)
    monkeypatch.setattr(command, "PAUSE_S", 0.0)
    monkeypatch.setattr(Pool, "locked", busy)
    asked = argparse.Namespace(action="forget", artifact=folder, user=7)
    assert command._done(asked, folder) == "2 entries of user 7 deleted"
    assert len(asked_for) == 3 + -(-pool._map.users.size // piece), "nothing is cleared twice"
    assert command._done(asked, folder) == "0 entries of user 7 deleted"
    monkeypatch.setattr(Pool, "locked", lambda self, work, otherwise: otherwise)
    with pytest.raises(ArtifactError, match="holds it"):
        command._done(asked, folder)


def test_what_a_dead_process_was_reading_is_cleared_at_once(pool):
    """Nobody else may come for hours, and sweep."""
    write(pool, 7, [1])
    table = pool._map.table
    table.processes[9] = os.getpid(), 1  # of another start: that process is no more
    table.pins[0, 9] = 1
    assert forget.forget(pool, owner_key(pool.secret, 7)) == 1
    assert bytes([7] * 8) not in pool._map.users.tobytes()
