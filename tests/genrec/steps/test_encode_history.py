"""What the first step reads of a history and counts of it, against one item at a time, in versions of a catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from build.catalogue import add_items, remove_items
from build.groups import group_items
from ensembles.local import request
from genrec import metrics
from genrec.catalogue.answerable import listed
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import Current, folder_of, point
from genrec.errors import InputError
from genrec.settings import MOST_VALUES, Settings
from genrec.steps import MOST_GROUPS
from genrec.steps.encode_history import EncodeHistory
from tests.oracles.twin import twin_artifact

FAR = 2**63 - 1
VERSIONS = {
    1: "as it was",
    2: "without two items",
    3: "with more of them",
    4: "with one far from all",
    5: "with groups",
}
GROUPS = [0, 1, 12, 77]  # of even ones, of odd ones, of some of either, of a single one
World = tuple[Catalogue, EncodeHistory]


def in_group(item: int, group: int) -> bool:
    """Whether an item is, but for the catalogue's first three, which are in none."""
    return {0: item % 2 == 0, 1: item % 2 == 1, 12: item % 5 == 2, 77: item == 1077}[group]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, World]]:
    """By version its catalogue, and the step of a server that started with it."""
    artifact = twin_artifact(tmp_path_factory.mktemp("histories") / "artifact", (7, 6, 5), 90)
    first = Catalogue.load(artifact / CATALOGUE).item_ids
    remove_items(artifact, np.array([first.min(), first.max()]))
    for more in ([first.min() - 1, first.min() + 1, first.max() + 9], [FAR]):
        (artifact / "new.csv").write_text(
            "item,title,like\n" + "".join(f"{each},new,{first[5]}\n" for each in more)
        )
        add_items(artifact, artifact / "new.csv")
    grouped = Catalogue.load(folder_of(artifact, 4) / CATALOGUE).item_ids[3:]
    pairs = [(item, group) for item in grouped for group in GROUPS if in_group(int(item), group)]
    (artifact / "groups.csv").write_text("group\n" + "".join(f"{group}\n" for _, group in pairs))
    group_items(artifact, artifact / "groups.csv", np.array([item for item, _ in pairs]))
    made = {}
    for version in VERSIONS:
        point(artifact, Current(version, version))
        step = EncodeHistory(Settings(artifact, artifact / "no-arena", 9, "twin"))
        made[version] = Catalogue.load(folder_of(artifact, version) / CATALOGUE), step
    yield made
    for _, step in made.values():
        step.close()


def slowly(
    catalogue: Catalogue, step: EncodeHistory, history: list[int], seen_too: bool, lists: dict[str, list[int]]
) -> dict[str, Any]:
    """One item after the other."""
    ids = catalogue.item_ids.tolist()
    config, twin = step._config, {item: row for row, item in enumerate(ids)}
    known = [twin[item] for item in history if item in twin]
    read = known[-config.max_history :]
    tokens = [
        int(code) + config.code_offsets[n] for row in read for n, code in enumerate(catalogue.codes[row])
    ]
    rows = {name: {twin[item] for item in items if item in twin} for name, items in lists.items()}
    for name in rows.keys() & {"exclude_groups", "only_groups"}:
        groups = lists[name]
        rows[name] = {row for row in range(3, len(twin)) if any(in_group(ids[row], g) for g in groups)}
    hidden = (
        (set(known) if seen_too else set()) | rows.get("exclude", set()) | rows.get("exclude_groups", set())
    )
    every = set(twin.values())
    left = (rows.get("only", every) & rows.get("only_groups", every)) - hidden
    return {
        "tokens": tokens if left else [],
        "left": left,
        "dropped": len(history) - len(known),
        "cut": len(known) - len(read),
    }


def check(world: World, history: list[int], seen_too: bool, **lists: list[int]) -> None:
    catalogue, step = world
    want = slowly(catalogue, step, history, seen_too, lists)
    tensors = {name: np.array([items], np.int64) for name, items in lists.items()}
    got = step.answer({**request(history, 3, seen_too), **tensors})
    _, length, _, dropped, cut, _ = got["ticket"][0].tolist()
    assert (length, dropped, cut) == (len(want["tokens"]), want["dropped"], want["cut"])
    assert got["tokens"][0, :length].tolist() == want["tokens"]
    assert got["excluded"].dtype == np.int32
    groups = step._loaded.latest[1].groups
    said = listed(got["excluded"][0], len(catalogue), len(groups))
    rows = set(said.rows.tolist())
    if said.choice:
        every = np.arange(len(catalogue))
        allowed = set(every[groups.listed(said.choice).allows(every)].tolist())
        assert rows <= allowed and allowed - rows == want["left"]
    else:
        assert (rows if said.alone else set(range(len(catalogue))) - rows) == want["left"]
    named = {name for name, given in lists.items() if given or name == "only_groups"}
    choice = "only" not in lists and bool(named & {"only_groups", "exclude_groups"})
    assert (said.alone, said.choice is not None) == ("only" in lists, choice)


@pytest.mark.parametrize("version", VERSIONS, ids=VERSIONS.get)
@examples(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_read_and_counted_is_that_of_one_item_at_a_time(
    worlds: dict[int, World], version: int, data: st.DataObject
) -> None:
    ends = [-(2**63), -1, 0, FAR - 1, FAR]
    item = st.one_of(
        st.sampled_from(ends), st.sampled_from(range(990, 1650)), st.sampled_from(range(1000, 1630, 7))
    )
    items = st.lists(item, max_size=40)
    lists = {name: data.draw(items) for name in ("exclude", "only") if data.draw(st.booleans())}
    if version == max(VERSIONS):
        groups = st.lists(st.sampled_from(GROUPS), max_size=4)
        named = ("exclude_groups", "only_groups")
        lists |= {name: data.draw(groups) for name in named if data.draw(st.booleans())}
    check(worlds[version], data.draw(items), data.draw(st.booleans()), **lists)


@pytest.mark.parametrize("version", VERSIONS, ids=VERSIONS.get)
@pytest.mark.parametrize("least", [-100, 990, FAR - 1000])
def test_the_longest_history_that_is_accepted(worlds: dict[int, World], version: int, least: int) -> None:
    history = np.random.default_rng(version).integers(least, least + 1000, MOST_VALUES).tolist()
    for seen_too in (False, True):
        check(worlds[version], history, seen_too)
        check(worlds[version], history, seen_too, exclude=history[::-1])
        check(worlds[version], history[:9], seen_too, only=history)


def test_a_history_of_the_whole_catalogue_leaves_nothing_to_find(worlds: dict[int, World]) -> None:
    for world in worlds.values():
        items = world[0].item_ids.tolist()
        check(world, items, True)
        check(world, items[1:], True, exclude=items[:1])
        check(world, items[:3], True, only=items[:3])
        check(world, items[:3], False, only=[])
    check(worlds[5], items, False, only_groups=[])
    check(worlds[5], items, False, only_groups=[0], exclude_groups=[0])


@pytest.mark.parametrize("field", ["exclude", "only"])
def test_a_list_of_another_shape_or_too_long_is_refused(worlds: dict[int, World], field: str) -> None:
    good = request([1000], 3)
    for wrong, says in (
        (np.zeros((1, 2), np.int32), "is of type int32"),
        (np.zeros(2, np.int64), "one row per request"),
        (np.zeros((1, MOST_VALUES + 1), np.int64), f"at most {MOST_VALUES}"),
    ):
        with pytest.raises(InputError, match=f"{field}: .*{says}"):
            worlds[1][1].answer({**good, field: wrong})


@pytest.mark.parametrize("field", ["exclude_groups", "only_groups"])
def test_a_group_that_is_none_is_refused(worlds: dict[int, World], field: str) -> None:
    good = request([1000], 3)
    for version, number, says in (
        (5, 3, r"names 3, .*0, 1, 12, 77"),
        (1, 0, "none: `genrec catalogue group`"),
    ):
        with pytest.raises(InputError, match=f"{field}: .*{says}"):
            worlds[version][1].answer({**good, field: np.array([[number]])})
    with pytest.raises(InputError, match=f"{field}: .*at most {MOST_GROUPS}"):
        worlds[5][1].answer({**good, field: np.zeros((1, MOST_GROUPS + 1), np.int64)})


def test_of_a_history_whose_wishes_leave_nothing_no_item_is_read(worlds: dict[int, World]) -> None:
    catalogue, step = worlds[1]
    asked = request(catalogue.item_ids[:5].tolist(), 3)
    before = metrics.HISTORY_ITEMS.value(kind="read")
    for only, read in ((catalogue.item_ids[:1], 5), (np.array([FAR]), 0)):
        (answer,) = step.run([{**asked, "only": only[None]}])
        assert isinstance(answer, dict) and answer["ticket"][0, 1] == 3 * read
        assert metrics.HISTORY_ITEMS.value(kind="read") - before == 5
