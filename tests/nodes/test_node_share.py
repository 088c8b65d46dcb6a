"""What a node is to hold, told through the pool's folder."""

import numpy as np
import pytest

from genrec.errors import ArtifactError
from genrec.nodes.node_share import FILE_NAME, NodeShare
from genrec.nodes.placement import EVERYWHERE, owners_of, place

KEYS = np.random.default_rng(0).integers(0, 2**63, (50, 2)).astype(np.uint64)


def test_what_was_saved_is_loaded_and_a_pool_that_says_nothing_holds_all(tmp_path):
    assert NodeShare.load(tmp_path) == NodeShare()
    assert (NodeShare().place(np.ones(50), KEYS) == EVERYWHERE).all()
    share = NodeShare(1, 3, 0.25)
    placed = share.place(np.arange(50), KEYS)
    np.testing.assert_array_equal(placed, place(np.arange(50), 3, 0.25, owners_of(KEYS, 3)))
    share.of(placed).save(tmp_path)
    found = NodeShare.load(tmp_path)
    assert found == NodeShare(1, 3, 0.25, (placed == EVERYWHERE).mean()) and 0 < found.replicated < 1
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]


def test_where_nothing_may_be_fetched_all_items_are_everywhere():
    """As long as nothing is measured: of a catalogue that nobody knows the popularity of too."""
    for frequencies in (np.zeros(50), np.arange(50)):
        assert (NodeShare(1, 3).place(frequencies, KEYS) == EVERYWHERE).all()


def test_a_file_that_says_something_else_is_refused(tmp_path):
    for text in ("", "[]", '{"nod": 1}'):
        (tmp_path / FILE_NAME).write_text(text)
        with pytest.raises(ArtifactError, match=FILE_NAME):
            NodeShare.load(tmp_path)
