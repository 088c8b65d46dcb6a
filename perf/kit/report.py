"""How every benchmark speaks: a table for people, then one JSON object as the last line, kept where asked."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.signals import end_by_signals
from genrec.errors import InputError
from perf.kit import machine

RESULTS = Path("results")
OWN = ("benchmark", "save", "label", "given")  # arguments that say nothing about what is measured
DEMO = Path("artifacts/ml-100k")
# What options that several benchmarks have are called and mean, unless one says more.
COMMON = {
    "beam_width": "beams kept at every level", "requests": "per round", "rounds": "of all ways, in turn",
    "rate": "requests per second", "top_k": "items answered", "threads": "of an engine process; 0: all cores",
    "seed": "of histories and arrivals",
}  # fmt: skip

# Options of any benchmark, and the least that leaves something to measure. Lists of numbers have limits of their own.
AT_LEAST = {
    "rounds": 1, "repeats": 1, "requests": 1, "top_k": 1, "threads": 0, "users": 1, "visits": 2, "asks": 1, "least": 1,
    "measurements": 1, "in_flight": 1, "prompts": 1, "history": 1, "tokens": 1, "user_tokens": 1, "item_tokens": 1,
    "flood_tokens": 1, "servers": 1, "items": 1, "interactions": 1, "sizes": 1, "queries": 1, "steps": 1,
    "sequences": 1, "interval": 1, "window_requests": 1, "trials": 1, "count": 0, "confirmations": 0, "burst": 1,
    "deadline_ms": 1, "histories": 1, "cross_check_s": 0, "files": 1, "events": 1, "scale": 1,
    "size": 1, "heads": 1, "vocabulary": 10, "fit": 1,
}  # fmt: skip
ABOVE_0 = ("rate", "seconds", "minutes", "slo_p99_ms", "slo_ms", "budget_s", "precision")


class _Parser(argparse.ArgumentParser):
    """One that keeps the words it was given, as `given`."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        found = super().parse_args(words, namespace)
        found.given = words
        _check(vars(found))
        return found


def _check(asked: Mapping[str, Any]) -> None:
    """Raises InputError where nothing would be measured, or be divided by, or be told apart."""
    limits = {name: (least, f"at least {least}") for name, least in AT_LEAST.items()}
    limits |= {name: (math.nextafter(0, 1), "more than 0") for name in ABOVE_0}
    for name, (least, limit) in limits.items():
        value = asked.get(name)
        if isinstance(value, int | float) and not value >= least:
            raise InputError(name.replace("_", "-"), f"is {value}", limit)
    names = [Path(each).name for each in asked.get("artifacts") or ()]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise InputError(
            "artifacts", f"has {twice} twice", "folders of different names, as figures go by them"
        )


def arguments(benchmark: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = _Parser(
        prog=f"genrec bench {benchmark}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(benchmark=benchmark)
    where = f"{RESULTS}/<machine>/{benchmark}"
    parser.add_argument("--save", action="store_true", help=f"keep the JSON in {where}.json")
    parser.add_argument("--label", default="", help=f"a second one beside it: {where}-LABEL.json")
    return parser


def add_options(parser: argparse.ArgumentParser, **defaults: float) -> None:
    """Options of COMMON, each with the default that this benchmark has for it."""
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help=COMMON[name])


def numbers_of(asked: argparse.Namespace, name: str, least: int = 1, most: int = 2**31 - 1) -> list[int]:
    """Those that the option `name` lists, as 32,128: whole ones, `least` to `most`. Raises InputError."""
    text = getattr(asked, name)
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(least <= each <= most for each in numbers):
        limit = f"whole numbers, {least} to {most}, with commas between"
        raise InputError(name.replace("_", "-"), f"is {text!r}", limit)
    return numbers


def add_artifact(parser: argparse.ArgumentParser) -> None:
    """The artifact that is served: the demo's, if none is named."""
    parser.add_argument("artifact", type=Path, nargs="?", default=DEMO, help="default: what `make demo` made")


@dataclass(frozen=True)
class BenchmarkRun:
    """One run: which benchmark, what was asked of it, and what it runs on."""

    benchmark: str
    asked: argparse.Namespace
    machine: dict[str, Any]

    def publish(
        self, figures: Mapping[str, Any], *, repeats: int, spread: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        """Print the JSON object, and keep it if `--save` is given.

        `repeats` is how often each figure was measured; `spread` has (lowest, highest) of the main ones.
        """
        result = plain(
            {
                "benchmark": self.benchmark,
                **figures,
                "repeats": repeats,
                "spread": {name: list(ends) for name, ends in (spread or {}).items()},
                "settings": settings_of(vars(self.asked)),
                "command": command_of(self.asked),
                "date": datetime.date.today().isoformat(),
                "machine": self.machine,
            }
        )
        if self.asked.save:
            path = file_of(self.machine["name"], self.benchmark, self.asked.label)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result, indent=1) + "\n")
            print(f"kept in {path}")
        print(json.dumps(result))


def begin(asked: argparse.Namespace, about: Mapping[str, Any] | None = None) -> BenchmarkRun:
    """The run that these arguments ask for; looks at the machine before it is loaded, and shows what it sees.

    From now on SIGTERM and SIGHUP end the process as Ctrl-C does: of what the benchmark starts nothing is left behind.
    `about` has further facts, or other ones: of a device. Raises InputError.
    """
    end_by_signals()
    if not all(letter.isalnum() or letter in "._-" for letter in asked.label):
        raise InputError("label", f"is {asked.label!r}", "letters, digits, '.', '_' and '-'")
    run = BenchmarkRun(asked.benchmark, asked, machine.facts() | dict(about or {}))
    show(run.machine)
    return run


def file_of(machine_name: str, benchmark: str, label: str = "") -> Path:
    """Where a result is kept."""
    return RESULTS / machine_name / f"{benchmark}{'-' if label else ''}{label}.json"


def settings_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A benchmark's arguments for its JSON; of paths the name only, not where they lay."""
    return {key: plain(value) for key, value in asked.items() if key not in OWN}


def command_of(asked: argparse.Namespace) -> str:
    """What was typed, without --save; of paths that begin at the root, the name."""
    words = [re.sub("^(--[a-z-]+=)?/.*/(?=[^/])", r"\1", word) for word in asked.given if word != "--save"]
    return shlex.join(["genrec", "bench", asked.benchmark, *words])


def plain(value: Any) -> Any:
    """The same in types that JSON has; what is no finite number is null."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return value.name
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(facts: Mapping[str, Any]) -> None:
    """A line per fact."""
    for key, value in facts.items():
        print(f"{key:>28}  {value}", flush=True)


def columns(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for people: the first column to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    )
