"""`genrec`: one command, a verb per room."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from cli import (
    batch,
    bench,
    cascade,
    catalogue,
    evaluating,
    importing,
    looking,
    making,
    pool,
    rank,
    recommend,
    router,
    serving,
    training,
)
from cli.run import run, start_log


class Verb(NamedTuple):
    """What it does, an example's arguments, what adds its arguments, and what runs it."""

    does: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


VERBS = {
    "data": Verb(
        "interactions to histories and semantic IDs",
        "artifacts/ml-100k --source ml-100k",
        making.add_data_arguments, making.data,
    ),
    "import": Verb(
        "an artifact of a Hugging Face checkpoint",
        "MiniOneRec artifacts/mini --items item.json --semantic-ids index.json --prompt prompt.json",
        importing.add_arguments, importing.run,
    ),
    "train": Verb(
        "train the generator, or with an option a model beside it",
        "artifacts/ml-100k",
        training.add_arguments, training.run,
    ),
    "export": Verb(
        "generator to ONNX",
        "artifacts/ml-100k",
        making.add_export_arguments, making.export,
    ),
    "build": Verb(
        "ONNX to engines, catalogue to validity index",
        "artifacts/ml-100k",
        making.add_build_arguments, making.build,
    ),
    "serve": Verb(
        "serve an artifact with tritonserver until Ctrl-C",
        "artifacts/ml-100k --grpc-port 8001",
        serving.add_arguments, serving.run,
    ),
    "route": Verb(
        "serve an artifact with several servers behind a router until Ctrl-C",
        "artifacts/ml-100k --servers 2 --grpc-port 8001",
        router.add_route_arguments, router.route,
    ),
    "rollout": Verb(
        "let a router's users go to the servers of another artifact",
        "artifacts/old artifacts/new --share 10",
        router.add_rollout_arguments, router.rollout,
    ),
    "recommend": Verb(
        "ask a server, or the local runtime",
        "artifacts/ml-100k --url 127.0.0.1:8001 --history 50,172,1",
        recommend.add_arguments, recommend.run,
    ),
    "batch": Verb(
        "answer every user of the data set, into a file",
        "artifacts/ml-100k --out lists.parquet --exclude-history",
        batch.add_arguments, batch.run,
    ),
    "rank": Verb(
        "rank candidates, or what the generator finds",
        "artifacts/ml-100k --url 127.0.0.1:8001 --history 50,172,1 --candidates 7,98,100",
        rank.add_arguments, rank.run,
    ),
    "cascade": Verb(
        "a data set's users through pre-inference, retrieval and ranking: where time goes",
        "artifacts/ml-100k --url 127.0.0.1:8001",
        cascade.add_arguments, cascade.run,
    ),
    "pool": Verb(
        "KV that is reused, of the servers that run: status, forget, fill",
        "forget artifacts/ml-100k 42",
        pool.add_arguments, pool.run,
    ),
    "catalogue": Verb(
        "versions of the catalogue: add, remove, group, ungroup, swap, rollback, status",
        "swap artifacts/ml-100k",
        catalogue.add_arguments, catalogue.run,
    ),
    "trace": Verb(
        "one request's way through a server that traces, as a waterfall",
        "server.json --history 50,172,1 --svg way.svg",
        looking.add_trace_arguments, looking.trace,
    ),
    "web": Verb(
        "a page to try an artifact, until Ctrl-C",
        "artifacts/ml-100k --port 8080",
        looking.add_web_arguments, looking.web,
    ),
    "evaluate": Verb(
        "leave-one-out quality next to two baselines",
        "artifacts/ml-100k --json",
        evaluating.add_evaluate_arguments, evaluating.evaluate,
    ),
    "sweep": Verb(
        "highest request rate within a P99",
        "artifacts/ml-100k --slo-p99-ms 100",
        evaluating.add_sweep_arguments, evaluating.sweep,
    ),
    "bench": Verb(
        "every benchmark: list them, or run one",
        "stages artifacts/ml-100k --save",
        bench.add_arguments, bench.run,
    ),
}  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """Takes a list that begins with a negative id, `-5,-19`, for a value, as argparse takes a negative number."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._negative_number_matcher = re.compile(r"-[0-9][0-9,-]*$|-[0-9]*\.[0-9]+$")


def parser() -> argparse.ArgumentParser:
    """All verbs and their options."""
    # No option may be shortened: `evaluate --user 3` would be taken for `--users 3`.
    whole = {"allow_abbrev": False}
    top = _Parser(prog="genrec", description="Generative recommendation on Triton.", **whole)
    top.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        epilog = f"example: genrec {name} {verb.example}"
        verb.add_arguments(
            verbs.add_parser(name, help=verb.does, description=verb.does, epilog=epilog, **whole)
        )
    return top


def _version() -> str:
    try:
        return version("genrec-triton")
    except PackageNotFoundError:
        return "of a folder that is not installed"


def main(argv: list[str] | None = None) -> int:
    """Run a verb; errors people can act on are printed as one line."""
    arguments = parser().parse_args(argv)
    start_log()
    folders = (getattr(arguments, name, None) for name in ("artifact", "run_dir", "out"))
    return run(
        f"genrec {arguments.verb}",
        lambda: VERBS[arguments.verb].run(arguments),
        [path for path in folders if path is not None],
    )


if __name__ == "__main__":
    sys.exit(main())
