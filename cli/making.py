"""`genrec data`, `genrec export` and `genrec build`: what they take and do. `genrec train` is in training.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.options import add_artifact, add_settings, of_options, sizes, tell_outdated
from genrec.errors import InputError


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Where interactions and semantic IDs come from."""
    add_artifact(parser)
    parser.add_argument("--source", help="ml-100k, ml-1m, or a folder that holds a data set")
    parser.add_argument(
        "--interactions", type=Path, help="CSV, TSV or Parquet: user, item, timestamp; or sequences"
    )
    parser.add_argument(
        "--items", type=Path, help="required beside --interactions: CSV, TSV, Parquet or JSON: item, title"
    )
    parser.add_argument(
        "--users",
        type=Path,
        help="beside --interactions: CSV, TSV or Parquet: user, and a column per feature",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="read and sort on this Ray cluster; `local`: on one that is started here",
    )
    parser.add_argument(
        "--codebook-sizes", type=sizes, help="T_1,...,T_L, e.g. 256,64,16; default by catalogue"
    )
    parser.add_argument("--semantic-ids", type=Path, help="published semantic IDs instead of trained ones")


def data(a: argparse.Namespace) -> None:
    """Histories, then the catalogue."""
    from cli.chain import make_catalogue, make_data

    if a.semantic_ids and a.codebook_sizes:
        raise InputError(
            "codebook-sizes", "are given with --semantic-ids", "without: those have sizes of their own"
        )
    with of_options(a, "interactions", "items", "users", "semantic_ids"):
        make_data(a.artifact, a.source, a.interactions, a.items, a.ray, a.users, a.semantic_ids)
        make_catalogue(a.artifact, a.codebook_sizes, a.semantic_ids)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """The artifact, and whether only a delta is asked for."""
    add_artifact(parser)
    rows = "of an hstu-ranker trained further, only the rows that changed; servers that run take them in"
    parser.add_argument("--delta", action="store_true", help=rows)


def export(a: argparse.Namespace) -> None:
    """Write the graphs, or what has changed of a ranker."""
    from export.generator import export_artifact
    from export.hstu_delta import export_delta

    if a.delta:
        print(export_delta(a.artifact) or "export: nothing has changed in the hstu-ranker")
        return
    print("export: done" if export_artifact(a.artifact) else "export: still good")


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """The artifact and the target."""
    add_artifact(parser)
    add_settings(parser, "target")


def build(a: argparse.Namespace) -> None:
    """Compile what is not good any more."""
    from build.engines import build_artifact

    print(f"build: {', '.join(build_artifact(a.artifact, a.target)) or 'all still good'}")
    tell_outdated(a.artifact)
