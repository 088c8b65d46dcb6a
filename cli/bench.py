"""`genrec bench`: every benchmark by its name."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A name, and whatever that benchmark takes."""
    parser.add_argument("name", nargs="?", help="which one; without it all are listed")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its own options, and --save")


def run(a: argparse.Namespace) -> None:
    """List them, or run one."""
    from perf.kit import benchmarks

    if a.name is None:
        print(benchmarks.listing())
    else:
        benchmarks.run(a.name, a.options)
