"""`genrec train`: the generator, what stands beside it, or another model."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.options import add_artifact, add_device, at_least, check_read, positive
from genrec.errors import InputError
from genrec.files import check_spared
from genrec.models.registry import CONFIG
from genrec.rank.hstu import CONFIG as HSTU_CONFIG
from genrec.rank.hstu import FEATURES, NEXT_CONFIG
from genrec.rank.options import HISTORIES, OPTIONS, TRAINED_FOR

MOST_THREADS = 4096  # more than a machine has cores; torch starts whatever it is told
AS_MADE = "the ranker stays as it was made"
MEMORY = {  # settings that an update's memory grows with
    "generator": "batch_items", "draft": "batch_items", "ranker": "batch", "hstu-ranker": "tokens",
    "hstu-next": "tokens",
}  # fmt: skip
WRITTEN = (
    CONFIG,
    "draft.json",
    OPTIONS,
    HSTU_CONFIG,
    NEXT_CONFIG,
    FEATURES,
)  # beside weights, which no recipe is
NOT_FURTHER = {  # options that training further does not read
    "minutes": "events are learnt once", "ranker_order": AS_MADE, "ranker_history": AS_MADE, "own_backbone": AS_MADE,
}  # fmt: skip


def add_arguments(train: argparse.ArgumentParser) -> None:
    """What can be trained, and how."""
    add_artifact(train)
    # Ranks draw from products of it, which must fit 64 bits.
    train.add_argument("--seed", type=at_least(0, 2**32 - 1), default=0, help="of what is random; default: 0")
    train.add_argument(
        "--threads",
        type=at_least(0, MOST_THREADS),
        default=0,
        help="of all ranks together; 0: all cores, the default",
    )
    beside = train.add_mutually_exclusive_group()
    beside.add_argument(
        "--draft", choices=("alone", "joint"), help="a draft head for the generator: alone, or both together"
    )
    beside.add_argument(
        "--ranker", action="store_true", help="a ranker over the generator, of its own best candidates"
    )
    train.add_argument(
        "--ranker-order", choices=tuple(TRAINED_FOR), help="what the ranker is trained for; default: split"
    )
    train.add_argument(
        "--ranker-history", choices=HISTORIES,
        help="what the ranker reads for an item of a history: its semantic ID (codes, the default), or its row of"
        " item_tokens.safetensors",
    )  # fmt: skip
    train.add_argument(
        "--own-backbone", action="store_true", help="the ranker changes the generator's layers, in a copy"
    )
    beside.add_argument(
        "--recipe",
        metavar="MODEL",
        help="generator, draft, ranker, hstu-ranker (of ratings), hstu-next (of the next item), or a JSON file that"
        " changes settings of one; export, build and serve put each of the last three behind `rank`",
    )
    more = (
        "train the generator, its ranker or draft head, or an HSTU model, further, on the last file's events (CSV, TSV"
        " or Parquet: user, item, timestamp, of an hstu-ranker rating too)"
    )
    train.add_argument("--events", type=Path, nargs="+", action="extend", metavar="FILE", help=more)
    train.add_argument(
        "--ranks", type=at_least(1), default=1, help="processes that train together; default: 1"
    )
    add_device(train, "trains")
    train.add_argument("--minutes", type=positive, help="stop after this long, with the weights so far")


def run(a: argparse.Namespace) -> None:
    """Train what was asked for."""
    from cli.chain import How, make_draft, make_hstu, make_hstu_next, make_model, make_ranker
    from cli.further import further_draft, further_generator, further_hstu, further_hstu_next, further_ranker
    from training.device import use_device
    from training.recipe_file import DRAFT, GENERATOR, HSTU, HSTU_NEXT, RANKER, read_recipe

    further = {
        GENERATOR: further_generator, DRAFT: further_draft, RANKER: further_ranker, HSTU: further_hstu,
        HSTU_NEXT: further_hstu_next,
    }  # fmt: skip
    read_by = {
        "ranker_order": (RANKER,), "ranker_history": (RANKER,), "own_backbone": (RANKER,),
    }  # fmt: skip
    model, changes = read_recipe(a.recipe) if a.recipe else (RANKER if a.ranker else GENERATOR, {})
    if a.recipe:
        check_spared([Path(a.recipe)], a.artifact / "model", WRITTEN)
    if a.draft:
        model, changes = DRAFT, {"joint": a.draft == "joint"}
    check_read(model, vars(a), read_by)
    use_device(a.device, a.ranks)
    for name, why in NOT_FURTHER.items():
        if a.events and getattr(a, name):
            raise InputError(name.replace("_", "-"), "is given with --events", f"without: {why}")
    how = How(a.seed, a.threads, a.minutes, a.ranks, a.device)
    make = {GENERATOR: make_model, DRAFT: make_draft, HSTU: make_hstu, HSTU_NEXT: make_hstu_next}
    try:
        if a.events:
            further[model](a.artifact, a.events, how, changes)
        elif model == RANKER:
            order, shared, history = (
                a.ranker_order or "split",
                not a.own_backbone,
                a.ranker_history or "codes",
            )
            make_ranker(a.artifact, order, shared, history, how, changes)
        else:
            make[model](a.artifact, how, changes)
    except MemoryError as error:
        less = f"a recipe file with a smaller {MEMORY[model]} takes less"
        less += ", and so do fewer --ranks" if a.ranks > 1 else ""
        raise MemoryError(f"{error or 'the system gives no more'}; {less}") from error
