"""`genrec catalogue`: versions of an artifact's catalogue, made beside the one that is served, and switched to."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cli.options import add_artifact, groups
from genrec.words import command, counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHOWN = 20  # groups of a version
ACTIONS = {
    "add": ("a new version with more items", "genrec catalogue add artifacts/ml-100k new_items.csv"),
    "remove": ("a new version with fewer items", "genrec catalogue remove artifacts/ml-100k 50,172"),
    "group": (
        "a new version with named groups of items",
        "genrec catalogue group artifacts/ml-100k on_sale.csv",
    ),
    "ungroup": (
        "a new version without some of its groups",
        "genrec catalogue ungroup artifacts/ml-100k sale,new",
    ),
    "swap": ("serve a version, the newest if none is named", "genrec catalogue swap artifacts/ml-100k 3"),
    "rollback": ("serve the version before the last swap", "genrec catalogue rollback artifacts/ml-100k"),
    "status": ("which versions there are", "genrec catalogue status artifacts/ml-100k"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions and their arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = {}
    for action, (what, example) in ACTIONS.items():
        made[action] = actions.add_parser(
            action, help=what, description=what, epilog=f"example: {example}", allow_abbrev=False
        )
        add_artifact(made[action])
    made["add"].add_argument(
        "items",
        type=Path,
        help="CSV or Parquet: item (its id or key), title, code_1, ..., code_L or like, and token_1, ... where "
        "items have own",
    )
    made["remove"].add_argument(
        "items", help="item ids as 1,2,3, keys of items.parquet, or a CSV or Parquet file: item"
    )
    made["group"].add_argument(
        "items",
        help="CSV or Parquet: item (its id or key), group, a row per pair; or items with a column category or genre",
    )
    made["ungroup"].add_argument("groups", type=groups, help="names as sale,new, or numbers")
    for action in ("add", "remove", "group", "ungroup"):
        made[action].add_argument(
            "--base",
            type=int,
            help="the version to start from; default: the newest, after its rollback the one that is served",
        )
    made["swap"].add_argument("version", type=int, nargs="?", help="default: the newest")


def run(a: argparse.Namespace) -> None:
    """Do it, and print the status."""
    if a.action not in ("swap", "rollback", "status"):
        from genrec import manifest
        from genrec.catalogue.versions import MADE, folder_of

        version = _make(a)
        base = manifest.read(folder_of(a.artifact, version))[MADE]["facts"]["from"]
        served = f"{command('catalogue swap', a.artifact, str(version))} serves it"
        print(f"version {version} made of version {base}; {served}")
    elif a.action in ("swap", "rollback"):
        from deploy.switch import roll_back, servers_of, switch

        now = switch(a.artifact, a.version) if a.action == "swap" else roll_back(a.artifact)
        print(
            f"version {now.version} is current, in {counted(len(servers_of(a.artifact)), 'running server')}"
        )
    print("\n".join(status_lines(a.artifact)))


def _make(a: argparse.Namespace) -> int:
    """The number of the version that an action makes."""
    from build.catalogue import add_items, remove_items
    from build.groups import drop_groups, group_items

    if a.action == "add":
        return add_items(a.artifact, a.items, a.base)
    if a.action == "remove":
        return remove_items(a.artifact, ids_of(a.artifact, a.items), a.base)
    if a.action == "group":
        return group_items(a.artifact, Path(a.items), ids_of(a.artifact, a.items), a.base)
    return drop_groups(a.artifact, a.groups, a.base)


def ids_of(artifact: Path, items: str) -> NDArray[np.int64]:
    """Of a file or a list of ids, or of keys as the data set spells its items, where it has an `items.parquet`.

    Raises InputError, ArtifactError.
    """
    import numpy as np

    from build.catalogue import is_file, read_item_ids
    from genrec.catalogue.keys import find_ids, load_keys
    from genrec.catalogue.typed import split_keys
    from training.data.keys import is_plain
    from training.data.tables import ITEM, read_table, required

    path, known = Path(items), load_keys(artifact)
    if not len(known):
        return read_item_ids(items)
    if there := is_file(path):
        field, keys = f"{path}, column item", required(read_table(path), path, ITEM).to_pylist()
    else:
        field, keys = "items", split_keys(items, "items")
    if all(map(is_plain, keys)) or (path.suffix in {".csv", ".parquet"} and not there):
        return read_item_ids(items)
    return np.array(find_ids(known, keys, field, "ids alone"), np.int64)


def status_lines(artifact: Path) -> list[str]:
    """A line for every version."""
    from genrec import manifest
    from genrec.catalogue.versions import (
        BASE,
        GROUPED,
        MADE,
        folder_of,
        of_another_catalogue,
        read_current,
        versions_of,
    )
    from genrec.errors import ArtifactError

    current = read_current(artifact)
    lines = []
    for version in versions_of(artifact):
        served = [
            *(["current"] if version == current.version else []),
            *(["to roll back to"] if version == (current.before or (0,))[-1] else []),
        ]
        try:
            stages = manifest.read(folder_of(artifact, version))
        except ArtifactError as error:  # the others are there, and what was done before is done
            lines.append(f"  version {version}: {'; '.join([str(error), *served])}")
            continue
        made = ", ".join(f"{key} {value}" for key, value in stages.get(MADE, {"facts": {}})["facts"].items())
        items = stages.get("validity", {"facts": {}})["facts"].get("items", "?")
        notes = [made or ("the artifact's own" if version == BASE else "incomplete"), *served]
        if of_another_catalogue(artifact, version):
            notes.append("refused, as of another catalogue.parquet")
        lines.append(f"  version {version}: {counted(items, 'item')}, {'; '.join(notes)}")
        if GROUPED in stages:
            lines.append(f"    groups: {', '.join(_groups(stages[GROUPED]['facts']))}")
    return lines


def _groups(sizes: dict[str, int]) -> Iterator[str]:
    """Names, as they are typed, with how many items there are, and the numbers that stand for them in a tensor; the
    largest of many.
    """
    from genrec.catalogue.group_number import group_number
    from genrec.catalogue.typed import as_typed

    shown = sorted(sizes, key=lambda name: (-sizes[name], name))[:SHOWN]
    for name in sorted(shown):
        number = group_number(name)
        yield f"{as_typed(name)} ({counted(sizes[name], 'item')}{'' if str(number) == name else f', {number}'})"
    if others := len(sizes) - len(shown):
        yield f"and {counted(others, 'smaller one')}"
