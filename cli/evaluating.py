"""`genrec evaluate` and `genrec sweep`: how good the lists are, and how many requests a second hold a P99."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.options import (
    add_artifact,
    add_device,
    add_settings,
    at_least,
    check_read,
    folder,
    positive,
    tell_outdated,
)
from cli.recommend import add_decoder
from genrec.errors import InputError
from genrec.settings import Settings

# The stages of the manifest that made what is evaluated.
STAGES = {
    "generator": ("train",), "ranker": ("train", "ranker"), "hstu-ranker": ("hstu",),
    "hstu-next": ("hstu-next", "train"),  # the generator's candidates too, where there is one
}  # fmt: skip


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model is evaluated, on whom."""
    add_artifact(parser)
    parser.add_argument("--keep-seen", action="store_true", help="seen items may be answered")
    parser.add_argument("--users", type=at_least(1), help="a sample instead of all")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--ranker", action="store_true", help="the ranker's orders of the generator's candidates instead"
    )
    instead.add_argument(
        "--recipe",
        choices=("hstu-ranker", "hstu-next"),
        help="GAUC of the HSTU ranker instead; or how good HSTU is at the next item",
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    add_device(parser, "computes the scores of a ranker or an HSTU model")
    add_decoder(parser)
    add_settings(parser, "verify", "beam_width")


def evaluate(a: argparse.Namespace) -> None:
    """Measure one model, and print a table or JSON."""
    from genrec.catalogue.meaning import check_meaning
    from genrec.manifest import check_inputs

    given = {
        "users": a.users, "keep_seen": a.keep_seen, "decoder": a.decoder != "beam",
        "beam_width": a.beam_width != Settings.beam_width, "verify": a.verify != Settings.verify,
        "device": a.device != "cpu",
    }  # fmt: skip
    model = "ranker" if a.ranker else a.recipe or "generator"
    of_rankers = ("ranker", "hstu-ranker", "hstu-next")
    check_read(model, given, {**dict.fromkeys(given, ("generator",)), "device": of_rankers})
    if given["verify"] and not given["decoder"]:
        raise InputError("verify", "is given for the decoder beam, which does not read it", "for draft alone")
    if model in of_rankers:
        # Imports torch, of which a generator's evaluation needs nothing
        from training.device import use_device

        use_device(a.device)
    check_inputs(a.artifact, "tokenise")
    check_meaning(a.artifact, *STAGES[model])
    found, table = _measured(a, model)
    print(_as_json(found) if a.json else table(found))


def _as_json(found: Any) -> str:
    """A figure of nobody is NaN, for which JSON has null alone."""
    return json.dumps(json.loads(json.dumps(found), parse_constant=lambda _: None))


def _measured(a: argparse.Namespace, model: str) -> tuple[Any, Callable[[Any], str]]:
    """Figures, and what makes a table of them."""
    if model == "ranker":
        from perf.quality.rank_quality import measure_ranker, ranker_table

        return measure_ranker(a.artifact, a.device), ranker_table
    if model == "hstu-next":
        from training.hstu_next.measure import hstu_next_table, measure_hstu_next

        return measure_hstu_next(a.artifact, a.device), hstu_next_table
    if model == "hstu-ranker":
        from training.hstu.measure import hstu_table, measure_hstu

        return measure_hstu(a.artifact, a.device), hstu_table
    from perf.quality.quality import measure, table

    tell_outdated(a.artifact)
    figures = measure(a.artifact, a.beam_width, not a.keep_seen, a.users, decoder=a.decoder, verify=a.verify)
    return figures, table


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """The P99, and where its curve goes."""
    add_artifact(parser)
    parser.add_argument(
        "--slo-p99-ms", type=positive, required=True, help="the P99 that must hold, in ms, e.g. 100"
    )
    parser.add_argument(
        "--out",
        type=folder,
        default=Path("artifacts/sweep"),
        help="a folder for CSV, JSON and PNG; default: %(default)s",
    )
    add_settings(parser, "beam_width")


def sweep(a: argparse.Namespace) -> None:
    """Start a server and find the rate."""
    from perf.slo.sweep import sweep as measured
    from perf.slo.sweep import verdict

    tell_outdated(a.artifact)
    found = measured(a.artifact, a.slo_p99_ms, a.out, beam_width=a.beam_width)
    print(verdict(found), file=sys.stderr)
    print(json.dumps(found))
