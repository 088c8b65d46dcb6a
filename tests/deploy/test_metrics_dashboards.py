"""The dashboard and the alerts against a real server that is asked, swapped, refused and killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from build.catalogue import remove_items
from clients.errors import BadRequest, Overloaded
from clients.ranker import Ranker
from clients.recommender import Recommender
from deploy import switch
from deploy.dashboards import render
from deploy.launcher import RunningServer
from deploy.ports import choose_ports
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, running_router
from deploy.router.limits import Limits
from ensembles.local import LocalRecommender
from genrec import metrics
from perf.kit import dashboard_picture
from tests.deploy.prometheus import Sample, grouped_by, scrape, selectors, total
from tests.serving.processes import stub_of, until
from tests.serving.servers import brief_server
from tests.serving.wire import inputs

WIDTH = 32
EVERY_S = 1.0  # as genrec.triton.metrics publishes
RULES = render.RULES.read_text()
QUERIES = [query for panel in render.PANELS for _, query in panel.queries]
EXPRESSIONS = [
    line for line in RULES.splitlines() if not line.strip().startswith(("#", "-", "summary:", "labels:"))
]
PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(not PROMETHEUS, reason="apt-get install prometheus")


def test_the_committed_dashboard_is_the_rendered_one() -> None:
    assert render.DASHBOARD.read_text() == render.dashboard()
    panels = json.loads(render.DASHBOARD.read_text())["panels"]
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
    assert len(places) == len(panels) == len(render.PANELS)


def test_every_family_is_on_the_dashboard() -> None:
    named = {each.name for query in QUERIES for each in selectors(query)}
    hidden = {"genrec_catalogue_refusals_total", "genrec_delta_refusals_total"}  # alerts have them
    missing = {f.name for f in metrics.FAMILIES if not named & set(f.series())}
    assert missing == hidden and all(name in RULES for name in hidden)


def test_the_local_runtime_counts_the_same(tiny: Path, items: list[int]) -> None:
    def counted() -> tuple[float, ...]:
        outcomes = ("answered", "popularity", "bad_input")
        return tuple(metrics.REQUESTS.value(outcome=each) for each in outcomes)

    before = counted()
    with LocalRecommender(tiny, WIDTH) as local:
        local.recommend([items[:3], items[3:5], []], 5)
        local.recommend([items[:3]], 0)
    assert tuple(np.subtract(counted(), before)) == (2, 1, 1)


@pytest.fixture(scope="module")
def artifact(tiny_ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(tiny_ranker, tmp_path_factory.mktemp("metrics") / "artifact")


@pytest.fixture(scope="module")
def asked(artifact: Path) -> Iterator[RunningServer]:
    """A server of its own, on a catalogue of its own."""
    with brief_server(artifact, beam_width=WIDTH) as running:
        yield running


@pytest.fixture(scope="module")
def routed(asked: RunningServer) -> Iterator[Router | None]:
    """A router before it, where there is HAProxy."""
    if not shutil.which("haproxy"):
        yield None
        return
    place = ServerPlace("a1", asked.ports.http, asked.ports.grpc, 100)
    with running_router([place, ServerPlace("b1")], 1, Limits(), choose_ports()) as running:
        yield running


def load(server: RunningServer, items: list[int]) -> None:
    """A request of every kind that moves something."""
    for model in ("recommend", "recommend_staged", "recommend_draft"):
        with Recommender(server.grpc_url, model=model) as recommender:
            for n in range(4):
                recommender.recommend([-1, *items[n : n + 20]], top_k=5)  # longer than the model reads
            recommender.recommend([])
            assert len(recommender.recommend(items[:3], top_k=5, only=items[5:8]).item_ids) == 3
            with pytest.raises(BadRequest):
                recommender.recommend(items[:3], top_k=0)
    with Ranker(server.grpc_url) as ranker:
        for _ in range(2):
            ranker.rank(items[:5], items[20:30], 5, user_id=1)
    with Recommender(server.grpc_url, model="recommend_draft") as recommender:
        late = 0
        for _ in range(200):
            try:
                recommender.recommend(items[:16], deadline_ms=1)
            except Overloaded:
                late += 1
        assert late, "no hop of Triton's takes a millisecond"


def settled(server: RunningServer, requests: float) -> list[Sample]:
    """A scrape once the server has published so many requests."""
    until(lambda: total(scrape(server.metrics_url), "genrec_requests_total") >= requests)
    return scrape(server.metrics_url)


def quiet(server: RunningServer) -> list[Sample]:
    """A scrape once every model has published what it counted: nothing has moved for longer than they take."""
    before, since = "", time.monotonic()
    while time.monotonic() - since < 2 * EVERY_S:
        samples = scrape(server.metrics_url)
        now = str([s for s in samples if s.name.startswith("genrec_")])
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.1)
    return samples


@pytest.fixture(scope="module")
def loaded(asked: RunningServer, items: list[int]) -> list[Sample]:
    """What a server says that has had a `load`, and was asked nothing else but its launcher's probes."""
    load(asked, items)
    settled(asked, 23)
    return quiet(asked)


@pytest.mark.serving
class TestServed:
    """In this order: later tests are harder on the server."""

    def test_every_series_that_is_named_exists_and_is_labelled_as_said(
        self, loaded: list[Sample], routed: Router | None
    ) -> None:
        samples = [*loaded, *(scrape(routed.ports.metrics_url) if routed else [])]
        for query in [*QUERIES, *EXPRESSIONS]:
            labels = grouped_by(query)
            for selector in selectors(query):
                if selector.name.startswith("haproxy_") and not routed:
                    continue
                chosen = list(selector.chosen(samples))
                assert chosen, f"{selector} in {query}"
                assert all(labels <= s.labels.keys() for s in chosen), query
        published = {s.name for s in samples if s.name.startswith("genrec_")}
        assert published == {name for family in metrics.FAMILIES for name in family.series()}
        for family in metrics.FAMILIES:
            models = {s.labels["model"] for s in samples if s.name == family.series()[0]}
            assert not family.models or models == set(family.models)

    def test_they_are_what_they_count(self, loaded: list[Sample]) -> None:
        counted = partial(total, loaded)
        assert counted("genrec_requests_total", outcome="popularity") >= 3
        assert counted("genrec_requests_total", outcome="bad_input") == 3
        assert counted("genrec_requests_total", outcome="answered") >= 12
        assert counted("genrec_requests_total", outcome="deadline") >= 1
        assert counted("genrec_requests_total", outcome="failed") == 0
        for kind in ("read", "unknown", "cut"):
            assert counted("genrec_history_items_total", kind=kind) >= 12
        for name in ("queue_seconds", "batch_seconds", "batch_requests", "batch_tokens", "prompt_tokens"):
            assert counted(f"genrec_{name}_count") >= 4
            assert counted(f"genrec_{name}_sum") > 0
            assert counted(f"genrec_{name}_bucket", le="+Inf") == counted(f"genrec_{name}_count")
        assert counted("genrec_beams_total", kind="kept") >= counted("genrec_beams_total", kind="scored") > 0
        for name, bad in (("genrec_draft_beams_total", "lost"), ("genrec_semantic_ids_total", "invalid")):
            assert counted(name, verdict="valid") > counted(name, verdict=bad) == 0
        assert counted("genrec_list_items_total", kind="answered") >= 3 * (4 * 5 + 3)
        assert counted("genrec_list_items_total", kind="short") == 3 * 2
        assert counted("genrec_arena_slots") == 64
        assert counted("genrec_rankings_total", order="split") >= 2  # probes rank too
        assert counted("genrec_rank_tokens_total", kind="user_reused") >= 15
        assert counted("genrec_pool_entries", kind="items") >= 10

    def test_every_request_counts_once_whatever_of_its_answer_is_asked_for(
        self, asked: RunningServer, items: list[int]
    ) -> None:
        """As often as Triton's own counts of ensembles say, which have the launcher's probes too."""

        def counted(samples: list[Sample]) -> tuple[float, float]:
            ours, triton = "genrec_requests_total", "nv_inference_request_success"
            counts = sum(total(samples, ours, outcome=each) for each in ("answered", "popularity"))
            return counts, sum(total(samples, triton, model=each) for each in asked.ensembles)

        top, retrieve = ({name: np.array([[9]], np.int32)} for name in ("top_k", "retrieve"))
        user = {"history": np.array([items[:5]]), "user_id": np.array([[1]])}
        asks = [("recommend", top), ("recommend_and_rank", {**top, **retrieve}), ("pre_infer", {})]

        def add_up(client: tritonclient.grpc.InferenceServerClient) -> bool:
            before = counted(quiet(asked))
            for ensemble, given in asks:
                tensors = inputs(tritonclient.grpc, {**user, **given})
                of_items = [tritonclient.grpc.InferRequestedOutput("item_ids")] if given else None
                for outputs in [None, of_items] * (5 if given else 2):  # what is missing is not what is twice
                    client.infer(ensemble, tensors, outputs=outputs)
            found = (np.subtract(counted(quiet(asked)), before) for _ in range(8))
            return any(ours == triton >= 24 for ours, triton in found)

        with tritonclient.grpc.InferenceServerClient(asked.grpc_url) as client:
            # On a busy machine a model may publish so late that what it had counted comes after `before`.
            assert any(add_up(client) for _ in range(3))

    def test_a_swap_shows(self, asked: RunningServer, artifact: Path, items: list[int]) -> None:
        switch.switch(artifact, remove_items(artifact, np.array(items[:1])))
        until(lambda: total(scrape(asked.metrics_url), "genrec_catalogue_version") == 2 * 8)
        assert total(scrape(asked.metrics_url), "genrec_catalogue_swaps_total") == 8

    def test_a_scrape_while_a_process_restarts(self, asked: RunningServer, items: list[int]) -> None:
        """Every scrape is whole, counters do not fall, and the restart shows."""
        name = {"name": "genrec_process_start_time_seconds", "model": "draft_beam"}
        before = scrape(asked.metrics_url)
        counted = total(before, "genrec_draft_beams_total")
        ours = {s.name for s in before if s.name.startswith("genrec_") and s.name.endswith("_total")}
        os.kill(stub_of(asked.pid, "draft_beam"), signal.SIGKILL)

        def restarted() -> bool:
            now = scrape(asked.metrics_url)
            assert not [each for each in ours if total(now, each) < total(before, each)]
            return total(now, **name) > total(before, **name)

        until(restarted)
        until(lambda: asked.restarts == 1)  # counted when its ensembles have answered
        with Recommender(asked.grpc_url, model="recommend_draft") as recommender:
            recommender.recommend(items[:3])
        until(lambda: total(scrape(asked.metrics_url), "genrec_draft_beams_total") > counted)

    @pytest.mark.long
    @needs_prometheus
    def test_prometheus_itself_evaluates_every_query_and_every_rule(
        self, asked: RunningServer, routed: Router | None, items: list[int], tmp_path: Path
    ) -> None:
        addresses = [asked.metrics_url, *([routed.ports.metrics_url] if routed else [])]
        queries = [q for q in QUERIES if routed or "haproxy_" not in q]
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{render.RULES}']\n"
            f"scrape_configs: [{{job_name: genrec, static_configs: [{{targets: {addresses}}}]}}]\n"
        )
        url = f"127.0.0.1:{choose_ports().http}"
        command = [
            PROMETHEUS, "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={url}",
        ]  # fmt: skip
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        try:
            until(lambda: answers(url, "up == 1"))
            load(asked, items)
            until(lambda: not unanswered(url, queries), lambda: unanswered(url, queries))
            drawn = dashboard_picture.draw(f"http://{url}", 1, tmp_path / "dashboard.png")
            assert 12 <= drawn <= len(render.PANELS) and (tmp_path / "dashboard.png").stat().st_size > 10_000
            os.kill(stub_of(asked.pid, "encode_history"), signal.SIGKILL)
            until(lambda: "GenrecModelProcessRestarted" in firing(url))
            rules = [rule for group in api(url, "rules")["groups"] for rule in group["rules"]]
            assert len(rules) == 13 and {rule["health"] for rule in rules} == {"ok"}
        finally:
            process.terminate()
            process.wait(30)


def api(url: str, path: str, **parameters: str) -> Any:
    address = f"http://{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=10) as response:
        return json.load(response)["data"]


def answers(url: str, query: str) -> bool:
    """Whether Prometheus has numbers for it."""
    try:
        found = api(url, "query", query=query)["result"]
    except OSError:
        return False
    return any(each["value"][1] != "NaN" for each in found)


def unanswered(url: str, queries: list[str]) -> list[str]:
    return [query for query in queries if not answers(url, query)]


def firing(url: str) -> set[str]:
    return {each["labels"]["alertname"] for each in api(url, "alerts")["alerts"] if each["state"] == "firing"}
