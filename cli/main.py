"""`genrec`: one command, a verb per room."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cli import bench, cascade, catalogue, importing, looking, pool, rank, router, training
from cli.options import (
    add_settings,
    at_least,
    check_read,
    counts,
    folder,
    names,
    numbers,
    positive,
    sizes,
    whole_number,
)
from cli.run import run, start_log
from genrec.settings import chosen_fields

VERBS = {
    "data": ("interactions to histories and semantic IDs", "genrec data artifacts/ml-100k --source ml-100k"),
    "import": (
        "an artifact of a Hugging Face checkpoint",
        "genrec import MiniOneRec artifacts/mini --items item.json --semantic-ids index.json --prompt prompt.json",
    ),
    "train": ("train the generator", "genrec train artifacts/ml-100k"),
    "export": ("generator to ONNX", "genrec export artifacts/ml-100k"),
    "build": ("ONNX to engines, catalogue to validity index", "genrec build artifacts/ml-100k"),
    "serve": (
        "serve an artifact with tritonserver until Ctrl-C",
        "genrec serve artifacts/ml-100k --grpc-port 8001",
    ),
    "route": (
        "serve an artifact with several servers behind a router until Ctrl-C",
        "genrec route artifacts/ml-100k --servers 2 --grpc-port 8001",
    ),
    "rollout": (
        "let a router's users go to the servers of another artifact",
        "genrec rollout artifacts/old artifacts/new --share 10",
    ),
    "recommend": (
        "ask a server, or the local runtime",
        "genrec recommend artifacts/ml-100k --url 127.0.0.1:8001 --history 50,172,1",
    ),
    "rank": (
        "rank candidates, or what the generator finds",
        "genrec rank artifacts/ml-100k --url 127.0.0.1:8001 --history 50,172,1 --candidates 7,98,100",
    ),
    "cascade": (
        "a data set's users through pre-inference, retrieval and ranking: where time goes",
        "genrec cascade artifacts/ml-100k --url 127.0.0.1:8001",
    ),
    "pool": (
        "KV that is reused, of the servers that run: status, forget, fill",
        "genrec pool forget artifacts/ml-100k 42",
    ),
    "catalogue": (
        "versions of the catalogue: add, remove, swap, rollback, status",
        "genrec catalogue swap artifacts/ml-100k",
    ),
    "trace": (
        "one request's way through a server that traces, as a waterfall",
        "genrec trace server.json --history 50,172,1 --svg way.svg",
    ),
    "web": ("a page to try an artifact, until Ctrl-C", "genrec web artifacts/ml-100k --port 8080"),
    "evaluate": ("leave-one-out quality next to two baselines", "genrec evaluate artifacts/ml-100k --json"),
    "sweep": ("highest request rate within a P99", "genrec sweep artifacts/ml-100k --slo-p99-ms 100"),
    "bench": ("every benchmark: list them, or run one", "genrec bench stages artifacts/ml-100k --save"),
}
# Verbs with a file of their own: what adds their arguments, and what runs them.
OWN = {
    "train": (training.add_arguments, training.run),
    "catalogue": (catalogue.add_arguments, catalogue.run),
    "rank": (rank.add_arguments, rank.run),
    "cascade": (cascade.add_arguments, cascade.run),
    "pool": (pool.add_arguments, pool.run),
    "trace": (looking.add_trace_arguments, looking.trace),
    "web": (looking.add_web_arguments, looking.web),
    "bench": (bench.add_arguments, bench.run),
    "import": (importing.add_arguments, importing.run),
    "route": (router.add_route_arguments, router.route),
    "rollout": (router.add_rollout_arguments, router.rollout),
}


def parser() -> argparse.ArgumentParser:
    """All verbs and their options."""
    # No option may be shortened: `evaluate --user 3` would be taken for `--users 3`.
    whole = {"allow_abbrev": False}
    top = argparse.ArgumentParser(prog="genrec", description="Generative recommendation on Triton.", **whole)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    made = {}
    for verb, (what, example) in VERBS.items():
        made[verb] = verbs.add_parser(
            verb, help=what, description=what, epilog=f"example: {example}", **whole
        )
        if verb in OWN:
            OWN[verb][0](made[verb])
            continue
        made[verb].add_argument("artifact", type=folder, help="the artifact folder, e.g. artifacts/ml-100k")

    data = made["data"]
    data.add_argument("--source", help="ml-100k, ml-1m, or a folder that holds a data set")
    data.add_argument("--interactions", type=Path, help="CSV or Parquet: user, item, timestamp")
    data.add_argument("--items", type=Path, help="CSV or Parquet: item, title")
    data.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="read and sort on this Ray cluster; `local`: on one that is started here",
    )
    data.add_argument(
        "--codebook-sizes", type=sizes, help="T_1,...,T_L, e.g. 256,64,16; default by catalogue"
    )
    data.add_argument("--semantic-ids", type=Path, help="published semantic IDs instead of trained ones")

    rows = "of an hstu-ranker trained further, only the rows that changed; servers that run take them in"
    made["export"].add_argument("--delta", action="store_true", help=rows)

    serve = made["serve"]
    for name in ("http", "grpc", "metrics"):
        serve.add_argument(f"--{name}-port", type=int, help="default: a free one")
    serve.add_argument(
        "--address", default="127.0.0.1", help="0.0.0.0: others can reach it; default: %(default)s"
    )
    serve.add_argument("--i-know", action="store_true", help="listen there with an old Triton all the same")
    serve.add_argument(
        "--run-dir", type=folder, help="where the log and server.json go; default: a temporary folder"
    )

    add_settings(made["build"], "target")
    add_settings(serve, *(each.name for each in chosen_fields()))
    serve.add_argument(
        "--instances", type=counts, default={}, help="processes of a model, e.g. encode_history=2,decode=2"
    )
    serve.add_argument(
        "--ensembles", type=names, default=(), help="e.g. recommend: fewer models, less memory; default: all"
    )

    ask = made["recommend"]
    ask.add_argument("--url", help="host:port of a server; without it the local runtime answers")
    ask.add_argument("--protocol", choices=("grpc", "http"), default="grpc")
    ask.add_argument("--history", type=numbers, default=[], help="item ids, oldest first, e.g. 50,172,1")
    ask.add_argument(
        "--user", type=whole_number, help="take the history of this user of the data set instead"
    )
    ask.add_argument("--top-k", type=int, default=10)
    ask.add_argument("--exclude-history", action="store_true", help="do not answer items of the history")

    made["evaluate"].add_argument("--keep-seen", action="store_true", help="seen items may be answered")
    made["evaluate"].add_argument("--users", type=at_least(1), help="a sample instead of all")
    instead = made["evaluate"].add_mutually_exclusive_group()
    instead.add_argument(
        "--ranker", action="store_true", help="the ranker's orders of the generator's candidates instead"
    )
    instead.add_argument(
        "--recipe",
        choices=("hstu-ranker", "hstu-next"),
        help="GAUC of the HSTU ranker instead; or how good HSTU is at the next item",
    )
    made["evaluate"].add_argument("--json", action="store_true", help="for machines")
    for verb in ("recommend", "evaluate"):
        made[verb].add_argument(
            "--decoder", choices=("beam", "draft"), default="beam", help="decode passes, or the draft head"
        )
    add_settings(made["evaluate"], "verify")
    made["sweep"].add_argument("--slo-p99-ms", type=positive, required=True)
    made["sweep"].add_argument(
        "--out", type=folder, default=Path("artifacts/sweep"), help="CSV, JSON and PNG go here"
    )
    for verb in ("recommend", "evaluate", "sweep"):
        add_settings(made[verb], "beam_width")
    return top


def main(argv: list[str] | None = None) -> int:
    """Run a verb; errors people can act on are printed as one line."""
    arguments = parser().parse_args(argv)
    start_log()
    folders = (getattr(arguments, name, None) for name in ("artifact", "run_dir", "out"))
    work = OWN[arguments.verb][1] if arguments.verb in OWN else globals()[f"_{arguments.verb}"]
    return run(
        f"genrec {arguments.verb}",
        lambda: work(arguments),
        [path for path in folders if path is not None],
    )


def _data(a: argparse.Namespace) -> None:
    from cli.chain import make_catalogue, make_data

    make_data(a.artifact, a.source, a.interactions, a.items, a.ray)
    make_catalogue(a.artifact, a.codebook_sizes, a.semantic_ids)


def _export(a: argparse.Namespace) -> None:
    from export.generator import export_artifact
    from export.hstu_delta import export_delta

    if a.delta:
        print(export_delta(a.artifact) or "export: nothing has changed in the hstu-ranker")
        return
    print("export: done" if export_artifact(a.artifact) else "export: still good")


def _build(a: argparse.Namespace) -> None:
    from build.engines import build_artifact

    print(f"build: {', '.join(build_artifact(a.artifact, a.target)) or 'all still good'}")


def _serve(a: argparse.Namespace) -> None:
    from deploy.launcher import serve

    given = ["http_port", "grpc_port", "metrics_port", "ensembles", "instances", "run_dir"]
    given += ["address", "i_know"]
    given += [each.name for each in chosen_fields()]
    serve(a.artifact, **{name: getattr(a, name) for name in given})


def _recommend(a: argparse.Namespace) -> None:
    from cli.show import answer_lines, ask_local, ask_server, history_of

    history = a.history if a.user is None else history_of(a.artifact, a.user)
    ask = (
        ask_server(a.url, a.protocol, a.decoder) if a.url else ask_local(a.artifact, a.beam_width, a.decoder)
    )
    print("\n".join(answer_lines(a.artifact, history, ask(history, a.top_k, a.exclude_history))))


def _evaluate(a: argparse.Namespace) -> None:
    given = {"users": a.users, "keep_seen": a.keep_seen, "decoder": a.decoder != "beam"}
    model = "ranker" if a.ranker else a.recipe or "generator"
    check_read(model, given, dict.fromkeys(given, ("generator",)))
    if a.ranker:
        from perf.quality.rank_quality import measure_ranker, ranker_table

        found = measure_ranker(a.artifact)
        print(json.dumps(found) if a.json else ranker_table(found))
        return
    if a.recipe == "hstu-next":
        from training.hstu_next_measure import hstu_next_table, measure_hstu_next

        of_next = measure_hstu_next(a.artifact)
        print(json.dumps(of_next) if a.json else hstu_next_table(of_next))
        return
    if a.recipe:
        from training.hstu_measure import hstu_table, measure_hstu

        measured = measure_hstu(a.artifact)
        print(json.dumps(measured) if a.json else hstu_table(measured))
        return
    from perf.quality.quality import measure, table

    figures = measure(a.artifact, a.beam_width, not a.keep_seen, a.users, decoder=a.decoder, verify=a.verify)
    print(json.dumps(figures) if a.json else table(figures))


def _sweep(a: argparse.Namespace) -> None:
    from perf.slo.sweep import sweep

    print(json.dumps(sweep(a.artifact, a.slo_p99_ms, a.out, beam_width=a.beam_width)))


if __name__ == "__main__":
    sys.exit(main())
