"""`make demo`: real interactions in, recommendations out of a real tritonserver, every stage reused when still good.

The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from cli.chain import make_catalogue, make_data, make_draft, make_model, make_servable
from cli.options import folder
from cli.run import run, start_log
from cli.show import answer_lines
from clients.recommender import Recommender
from clients.wire import Recommendation
from deploy.launcher import RunningServer, running_server, serve
from deploy.ports import choose_ports
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import folder_of
from genrec.engine.instructions import engine_of
from genrec.manifest import digest_file, is_good, record, stage_key
from genrec.progress import counting
from genrec.settings import MOST_VALUES
from perf.kit.counters import Triton
from perf.kit.endpoints import Endpoint
from perf.quality.quality import measure, table
from training.data.histories import Histories

PORTS = 8000, 8001, 8002  # of HTTP, gRPC and metrics
USERS = 3
TIMED_REQUESTS = 200
TOP_K = 10
STAGED, DRAFT = "recommend_staged", "recommend_draft"
DRAFT_EPOCHS = 3  # a minute of training; `genrec train ARTIFACT --draft alone` takes the time it needs


def main() -> int:
    """Read the options, then show or serve."""
    arguments = argparse.ArgumentParser(description="From interactions to served recommendations.")
    arguments.add_argument("artifact", type=folder)
    arguments.add_argument("--source", help="ml-100k, ml-1m or a folder; default: the artifact's name")
    arguments.add_argument("--beam-width", type=int, default=128)
    arguments.add_argument("--serve", action="store_true", help="leave the server running")
    arguments.add_argument(
        "-v", "--verbose", action="store_true", help="what libraries say about themselves, too"
    )
    a = arguments.parse_args()
    start_log(a.verbose)
    work = serve_it if a.serve else show_it
    return run("demo", lambda: work(a.artifact, a.source or a.artifact.name, a.beam_width), [a.artifact])


def serve_it(artifact: Path, source: str, beam_width: int) -> None:
    """Prepare, and serve until Ctrl-C."""
    choose_ports(*PORTS)  # a port that is taken is told before the minutes that stages may take
    prepare(artifact, source)
    how_to_call(artifact)
    http, grpc, metrics = PORTS
    serve(artifact, http_port=http, grpc_port=grpc, metrics_port=metrics, beam_width=beam_width)


def show_it(artifact: Path, source: str, beam_width: int) -> None:
    """Prepare, ask a server, measure; print what came of it."""
    begun = time.monotonic()
    prepare(artifact, source)
    with running_server(artifact, beam_width=beam_width) as server:
        facts = show(artifact, server)
    quality = quality_of(artifact, beam_width)
    print(table(quality))
    facts |= {
        "hr10": quality["model"]["HR@10"],
        "ndcg10": quality["model"]["NDCG@10"],
        "counts_hr10": quality["transition counts"]["HR@10"],
        "counts_ndcg10": quality["transition counts"]["NDCG@10"],
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(json.dumps(facts))


def prepare(artifact: Path, source: str) -> None:
    """Every stage up to engines."""
    make_data(artifact, source)
    make_catalogue(artifact)
    make_model(artifact)
    make_draft(artifact, changes={"epochs": DRAFT_EPOCHS})
    make_servable(artifact)


def show(artifact: Path, server: RunningServer) -> dict[str, Any]:
    """Ask for some users over gRPC and HTTP, then for many in a row; print titles and times."""
    histories = Histories.load(artifact / "histories.parquet")
    users = np.linspace(0, len(histories) - 1, USERS + 2).astype(int)[1:-1]
    rows = [row[-MOST_VALUES:] for row in histories.cut(1).rows()]
    top_k = min(TOP_K, len(Catalogue.load(artifact / CATALOGUE, titles=False)))
    with Recommender(server.grpc_url) as grpc, Recommender(server.http_url, "http") as http:
        for user in users:
            history = rows[user].tolist()
            answer = grpc.recommend(history, top_k, exclude_history=True)
            again = http.recommend(history, top_k, exclude_history=True)
            same = np.array_equal(answer.item_ids, again.item_ids)
            print(
                f"user {histories.user_ids[user]} (gRPC; HTTP answers {'the same' if same else 'DIFFERENTLY'})"
            )
            print("\n".join(answer_lines(artifact, history, answer)))
    asked = [rows[n % len(rows)] for n in range(TIMED_REQUESTS)]
    seconds, answers, stages = timed(server, asked, top_k, "recommend")
    facts = facts_of(artifact, seconds, answers, stages)
    print(
        f"\n{TIMED_REQUESTS} requests one after another: P50 {facts['p50_ms']:.1f} ms, P99 {facts['p99_ms']:.1f} ms"
    )
    # Triton cannot see inside `generate`, so the time of each pass is taken where each is a model.
    staged = facts_of(artifact, *timed(server, asked, top_k, STAGED))
    facts["stages_ms"], facts["staged_p50_ms"] = staged["stages_ms"], staged["p50_ms"]
    print(f"with a model for every pass ({STAGED}): P50 {staged['p50_ms']:.1f} ms, of which, on average:")
    for stage, milliseconds in facts["stages_ms"].items():
        print(f"  {stage:16} {milliseconds:7.2f} ms")
    print(f"valid rate {facts['valid_rate']:.0%}, {facts['distinct']:g} distinct items of {top_k} asked")
    facts["draft"] = drafted = facts_of(artifact, *(found := timed(server, asked, top_k, DRAFT)))
    drafted["overlap"] = round(overlap(answers, found[1]), 3)
    print(
        f"the same by the draft head: P50 {drafted['p50_ms']:.1f} ms, P99 {drafted['p99_ms']:.1f} ms, valid rate "
        f"{drafted['valid_rate']:.0%}; its lists share {drafted['overlap']:.0%} of the items with beam search\n"
    )
    return facts


def overlap(one: list[Recommendation], other: list[Recommendation]) -> float:
    """Mean share of an answer's items that the other answer to the same request has too."""
    pairs = zip(one, other, strict=True)
    return float(np.mean([np.isin(a.item_ids, b.item_ids).mean() for a, b in pairs]))


def timed(
    server: RunningServer, histories: list[np.ndarray], top_k: int, ensemble: str
) -> tuple[list[float], list[Recommendation], dict[str, float]]:
    """Seconds and answer of every request, sent one after another, and each stage's milliseconds per request."""
    seconds, answers = [], []
    with closing(Triton(Endpoint(server.grpc_url, server.grpc_headers, ensemble))) as triton:
        before = triton.statistics()
        with counting(ensemble, len(histories), "request") as bar:
            for history in histories:
                begun = time.perf_counter()
                answers.append(triton.recommender.recommend(history, top_k, exclude_history=True))
                seconds.append(time.perf_counter() - begun)
                bar.update()
        after = triton.statistics()
    stages = {
        model: (after[model]["infer"] - before[model]["infer"]) / 1e6 / len(histories)
        for model in sorted(after)
        # Fewer calls than requests are the supervisor's probes of the other ensembles.
        if model != ensemble and after[model]["calls"] - before[model]["calls"] >= len(histories)
    }
    return seconds, answers, stages


def facts_of(
    artifact: Path, seconds: list[float], answers: list[Recommendation], stages: dict[str, float]
) -> dict[str, Any]:
    """Valid rate and distinct items are counted against the catalogue file, not believed from the server."""
    catalogue = Catalogue.load(folder_of(artifact, answers[0].catalogue_version) / CATALOGUE, titles=False)
    valid = [float((catalogue.rows_of(answer.item_ids) >= 0).mean()) for answer in answers]
    milliseconds = np.array(seconds) * 1e3
    median = float(np.median(milliseconds))
    shares = stages | {"triton and network": float(milliseconds.mean()) - sum(stages.values())}
    return {
        "valid_rate": float(np.mean(valid)),
        "distinct": float(np.mean([len(set(answer.item_ids.tolist())) for answer in answers])),
        "p50_ms": round(median, 2),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 2),
        "stages_ms": {name: round(ms, 3) for name, ms in shares.items()},
    }


def quality_of(artifact: Path, beam_width: int) -> dict[str, Any]:
    """Leave-one-out figures over all users, measured once per model and engine."""
    out = artifact / "quality.json"
    key = stage_key({"beam_width": beam_width, "manifest": [digest_file(artifact / "model" / "model.safetensors")]},
                    [artifact / "catalogue.parquet", engine_of(artifact, "openvino") / "engine.json"])  # fmt: skip
    if not is_good(artifact, "quality", key):
        out.write_text(json.dumps(measure(artifact, beam_width, remove_seen=True)) + "\n")
        record(artifact, "quality", key, [out], {})
    return dict(json.loads(out.read_text()))


def how_to_call(artifact: Path) -> None:
    """What to type next."""
    print(f"""
Serving {artifact}; from another terminal:
  .venv/bin/genrec recommend {artifact} --url 127.0.0.1:8001 --user 1 --exclude-history
  curl -s 127.0.0.1:8000/v2/models/recommend/infer -d '{{"inputs": [
    {{"name": "history", "datatype": "INT64", "shape": [1, 3], "data": [1, 50, 172]}},
    {{"name": "top_k", "datatype": "INT32", "shape": [1, 1], "data": [5]}}]}}'
""", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
