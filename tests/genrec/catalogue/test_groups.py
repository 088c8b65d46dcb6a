"""Named groups against sets of items: what they leave of the tree, their file, and what is refused."""

import json
import subprocess
import sys
import tracemalloc
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.catalogue import groups as groups_module
from genrec.catalogue import remembered
from genrec.catalogue.answerable import OF_GROUPS, THESE_ALONE, Choice, listed, of_groups
from genrec.catalogue.blocked import Blocked
from genrec.catalogue.files import GROUPS, VALIDITY
from genrec.catalogue.group_number import group_number
from genrec.catalogue.groups import Groups
from genrec.catalogue.remembered import Remembered
from genrec.catalogue.validity import ValidityIndex
from genrec.errors import ArtifactError, InputError
from genrec.tensor_file import read_tensors, write_tensors

choices = st.builds(
    Choice,
    st.none() | st.sets(st.integers(0, 3)).map(lambda places: tuple(sorted(places))),
    st.sets(st.integers(0, 3)).map(lambda places: tuple(sorted(places))),
)


def made(rng, items):
    """Four groups: of nothing, of everything, and two of some."""
    some = [np.flatnonzero(rng.random(items) < rng.random()).astype(np.int32) for _ in range(2)]
    return Groups("dbca", [np.zeros(0, np.int32), np.arange(items, dtype=np.int32), *some], items)


def slowly(groups, choice):
    """The rows that a choice leaves, as a set."""
    rows = [set(each.tolist()) for each in groups.members]
    every = set(range(groups.items))
    named = every if choice.any_of is None else set().union(*(rows[place] for place in choice.any_of))
    return named - set().union(*(rows[place] for place in choice.none_of))


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 60),
    choices, st.floats(0, 1),
)  # fmt: skip
def test_a_choice_leaves_the_ways_to_its_items_and_no_other(seed, sizes, items, choice, share):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, items) for size in sizes], axis=1)
    index = ValidityIndex.build(codes, sizes, np.zeros(items, int), np.arange(items))
    index.groups = made(rng, items)
    excluded = np.flatnonzero(rng.random(items) < share)
    every, left = np.arange(items), slowly(index.groups, choice) - set(excluded.tolist())
    given_rows = index.listed(np.concatenate((of_groups(choice), rng.permutation(excluded), [-1])))
    assert given_rows.choice == choice and given_rows.rows.tolist() == excluded.tolist()
    assert set(every[index.groups.listed(choice).allows(every)].tolist()) == slowly(index.groups, choice)
    blocked = index.blocked(np.concatenate((of_groups(choice), excluded)))
    for level in range(1, len(sizes) + 1):
        paths = sorted({tuple(code[:level]) for code in codes.tolist()})
        ways, closed = blocked.open_at(level), blocked.at(level)
        assert (ways is not None) == (choice.any_of is not None) and closed.dtype == np.int32
        reached = set(range(len(paths)) if ways is None else ways.tolist()) - set(closed.tolist())
        assert {paths[node] for node in reached} == {tuple(codes[row, :level].tolist()) for row in left}
        for nodes in (closed, closed if ways is None else ways):
            assert nodes.tolist() == sorted(set(nodes.tolist()))
    leaves = np.arange(index.node_count(index.levels))
    assert set(leaves[~blocked.closes(leaves)].tolist()) == set(index.row_leaf[sorted(left)].tolist())


def test_a_choice_is_worked_out_once():
    groups = made(np.random.default_rng(0), 50)
    assert groups.listed(Choice((2,))) is groups.listed(Choice((2,)))
    index = ValidityIndex.build(np.arange(50)[:, None], (50,), np.zeros(50, int), np.arange(50))
    index.groups = groups
    for _ in range(3):
        index.blocked(of_groups(Choice((2,), (3,))))
    assert len(index._base) == 1 and index._base(Choice((2,), (3,))) is index._base(Choice((2,), (3,)))


def test_what_is_remembered_is_bounded(monkeypatch):
    made = []
    kept = Remembered(lambda size: made.append(size) or np.zeros(size, np.int8), lambda array: (array,))
    monkeypatch.setattr(remembered, "MOST", 3)
    monkeypatch.setattr(remembered, "MOST_BYTES", 100)
    for size in (1, 2, 3, 1, 4, 1, 3):  # 2 was the last to be asked for when 4 came
        kept(size)
    assert made == [1, 2, 3, 4] and len(kept) == 3
    kept(95)
    assert made[-1] == 95 and len(kept) == 3  # 1, 3 and 95
    kept(1)
    assert made[-1] == 95
    kept(101)
    assert made[-1] == 101 and len(kept) == 1  # more than there is room for
    kept(101)
    kept(2)
    assert made[-2:] == [101, 2] and len(kept) == 1 and kept._bytes == 2


NEW_PROCESS = """
import sys
from pathlib import Path
from types import SimpleNamespace
from genrec.catalogue import blocked
from genrec.catalogue.answerable import Choice, of_groups
from genrec.catalogue.indices import load_validity
index = load_validity(Path(sys.argv[1]), SimpleNamespace(codebook_sizes=(9, 9)))
kernels = blocked._merged, blocked._parents
before = [kernel.signatures.copy() for kernel in kernels]
assert all(before)
for choice in (Choice((0,)), Choice(none_of=(0,))):
    index.blocked([*of_groups(choice), 0, 8])
assert [kernel.signatures for kernel in kernels] == before
"""


def test_no_request_waits_for_a_compiler(tmp_path):
    index = ValidityIndex.build(np.arange(9)[:, None].repeat(2, 1), (9, 9), np.zeros(9, int), np.arange(9))
    index.save(tmp_path / VALIDITY)
    Groups(["a"], [np.arange(0, 9, 2, dtype=np.int32)], 9).save(tmp_path / GROUPS)
    subprocess.run([sys.executable, "-c", NEW_PROCESS, str(tmp_path)], check=True)


def test_a_draft_is_held_against_a_large_choice_without_a_copy_of_it():
    nodes, none = np.arange(0, 500_000, 2, dtype=np.int32), np.zeros(0, np.int32)
    leaves = np.array([0, 1, 499_998, 499_999, 3], np.int32)
    for blocked, wanted in (
        (Blocked((nodes,)), [True, False, True, False, False]),
        (Blocked((none,), (nodes,)), [False, True, False, True, True]),
        (Blocked((nodes[:1],), (nodes,)), [True, True, False, True, True]),
        (Blocked((none,), (none,)), [True] * 5),
    ):
        assert peak_of(lambda of=blocked, wanted=wanted: of.closes(leaves).tolist() == wanted) < 50_000


def peak_of(found):
    """Bytes that are taken until something is `found`, which must be so."""
    tracemalloc.start()
    assert found()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_rows_are_held_against_a_large_choice_without_a_copy_of_it():
    every = np.arange(0, 500_000, 2, dtype=np.int32)
    index = ValidityIndex.build(
        np.arange(500_000)[:, None], (500_000,), np.zeros(500_000, int), np.arange(500_000)
    )
    index.groups = Groups(["even"], [every], 500_000)
    asked = np.array([*of_groups(Choice((0,))), 4, 5], np.int32)
    index.blocked(asked)  # worked out, and compiled
    assert peak_of(lambda: index.blocked(asked).at(1).tolist() == [4]) < 50_000


def test_groups_have_numbers():
    assert [group_number(name) for name in (7, "7", "0", str(2**63 - 1))] == [7, 7, 0, 2**63 - 1]
    others = ["sale", "Sale", " 7", "-7", str(2**63), "käse", "٧"]
    numbers = [group_number(name) for name in others]
    assert len(set(numbers)) == len(others) and all(2**20 < number < 2**63 for number in numbers)
    assert [group_number(int(name)) for name in ("-7", str(2**63))] == [numbers[3], numbers[4]]
    assert (
        group_number("0" * 9999 + "7") == 7 and group_number("7" * 9999) == group_number("7" * 9999) > 2**20
    )
    assert group_number("\udcff") != group_number("\ud800")  # of a command line, or of JSON
    assert group_number("sale") == 1132797139936644560  # clients of other languages may have it so
    groups = Groups(["7", "sale"], [np.zeros(0, np.int32)] * 2, 3)
    assert groups.places("only_groups", np.array([group_number("sale"), 7, 7])) == (0, 1)
    with pytest.raises(InputError, match=r"only_groups: names 8, which is no group .*7, 113\d+ \(sale\)"):
        groups.places("only_groups", [7, 8])
    with pytest.raises(InputError, match="genrec catalogue group"):
        Groups((), (), 3).places("only_groups", [8])
    many = Groups([str(n) for n in range(25)], [np.zeros(0, np.int32)] * 25, 3)
    with pytest.raises(InputError, match="19, 5 others"):
        many.places("only_groups", [99])
    long = Groups([f"{n}" + "漢" * 200 for n in range(9)], [np.zeros(0, np.int32)] * 9, 3)
    with pytest.raises(InputError, match="6 others") as refused:
        long.places("only_groups", [99])
    assert len(str(refused.value).encode()) < 2300


def test_groups_of_one_number_are_both_named():
    with pytest.raises(InputError, match="groups: '7' and '07' have one number, 7"):
        Groups(["b", "7", "07"], [np.zeros(0, np.int32)] * 3, 3)


@pytest.mark.parametrize(
    ("names", "members"),
    [
        (["a", "a"], [[0], [1]]), (["a"], [[0], [1]]), (["a"], [[3]]), (["a"], [[-1]]), (["a"], [[1, 0]]),
        (["a"], [[1, 1]]), (["7", "07"], [[0], [1]]),
    ],
)  # fmt: skip
def test_groups_that_are_none_are_refused(names, members):
    with pytest.raises(InputError, match="group"):
        Groups(names, [np.array(rows, np.int32) for rows in members], 3)


@pytest.mark.parametrize(
    "rows", [[], [2], [0, 4], [-2], [-1], [0], [1, 0, 2, 0], [0, 1, 4, 0], [0, 0, 9], [2, 0]]
)
def test_malformed_choices_are_refused(rows):
    with pytest.raises(InputError, match="excluded_rows"):
        listed([OF_GROUPS, *rows], 9, 4)
    with pytest.raises(InputError, match="no groups"):
        listed([OF_GROUPS, 1, 0, 0], 9, 0)


def test_heads_are_told_apart():
    assert len({OF_GROUPS, THESE_ALONE, -1}) == 3
    assert listed([OF_GROUPS, -1, 0], 9).choice == Choice()
    assert listed([OF_GROUPS, 0, 0], 9).choice == Choice(())
    assert listed([OF_GROUPS, 2, 1, 0, 1, 3, 8, 2], 9, 4)[1:] == (False, Choice((0, 1), (3,)))


def test_a_file_of_names_in_another_spelling_is_found_by_either(tmp_path):
    """As they were written before there was one spelling: two that look the same were two groups."""
    composed, apart = unicodedata.normalize("NFC", "Comédie"), unicodedata.normalize("NFD", "Comédie")
    assert composed != apart and group_number(composed) == group_number(apart)
    for names, members in (([apart], [[3, 4]]), ([composed, "new", apart], [[0, 3], [8], [3, 4]])):
        sizes, rows = (
            np.array([len(each) for each in members], np.int64),
            np.concatenate(members).astype(np.int32),
        )
        metadata = {"format": "genrec-groups", "version": "1", "names": json.dumps(names)}
        metadata["sha256"] = groups_module._digest(metadata["names"], sizes, rows)
        write_tensors(tmp_path / GROUPS, {"sizes": sizes, "rows": rows}, metadata)
        read = Groups.load(tmp_path, 9)
        assert read.names == (composed, "new")[: len(names)]
        for name in (composed, apart):
            (place,) = read.places("only_groups", [group_number(name)])
            assert read.members[place].tolist() == sorted(
                {row for each in (members[0], members[-1]) for row in each}
            )


def test_the_file_is_as_it_was_written_or_refused(tmp_path):
    groups = made(np.random.default_rng(1), 40)
    assert len(Groups.load(tmp_path, 40)) == 0
    groups.save(tmp_path / GROUPS)
    again = Groups.load(tmp_path, 40)
    assert again.names == groups.names and again.items == 40
    assert all(np.array_equal(one, other) for one, other in zip(again.members, groups.members, strict=True))
    with pytest.raises(ArtifactError, match=GROUPS):
        Groups.load(tmp_path, 39)  # "everything" has a row that this catalogue lacks
    metadata, tensors = read_tensors(tmp_path / GROUPS, "genrec-groups", "1")
    for change in ({"rows": tensors["rows"][::-1].copy()}, {"sizes": tensors["sizes"][::-1].copy()}):
        write_tensors(tmp_path / GROUPS, {**tensors, **change}, metadata)
        with pytest.raises(ArtifactError, match="checksum"):
            Groups.load(tmp_path, 40)
    write_tensors(tmp_path / GROUPS, tensors, {**metadata, "names": json.dumps(["a", "b", "c", "e"])})
    with pytest.raises(ArtifactError, match="checksum"):
        Groups.load(tmp_path, 40)
    (tmp_path / GROUPS).write_bytes(b"no tensors")
    with pytest.raises(ArtifactError, match=GROUPS):
        Groups.load(tmp_path, 40)
    Groups((), (), 40).save(tmp_path / GROUPS)
    assert len(Groups.load(tmp_path, 40)) == 0
