"""Several processes of a model: asked for by name, started, watched, and of the same answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clients.recommender import Recommender
from deploy import tritonserver
from deploy.launcher import RunningServer, running_server
from ensembles.local import LocalRecommender
from genrec.errors import InputError
from tests.conftest import BEAM_WIDTH
from tests.deploy.prometheus import scrape
from tests.serving.processes import until
from tests.serving.servers import brief_server

pytestmark = pytest.mark.serving
COUNTS = {"encode_history": 2, "prefill": 2, "decode": 2, "validity_lookup": 2, "generate": 2}


@pytest.fixture(scope="module")
def several(tiny: Path) -> Iterator[RunningServer]:
    options = {"ensembles": ("recommend", "recommend_staged"), "instances": COUNTS}
    with brief_server(tiny, beam_width=BEAM_WIDTH, **options) as server:
        yield server


def test_several_processes_of_a_model_answer_as_one_does(
    several: RunningServer, tiny: Path, items: list[int]
) -> None:
    """The staged ensemble, whose KV every process of prefill and decode must find in the arena."""
    histories = [items[n : n + 3] for n in range(24)]
    with LocalRecommender(tiny, BEAM_WIDTH, decoder="staged") as local:
        expected = [answer["item_ids"][0].tolist() for answer in local.recommend(histories, 5)]
    assert len(tritonserver.living_stubs(several.pid)) == sum(COUNTS.values()) + 1  # and beam_search

    def ask(history: list[int]) -> list[int]:
        with Recommender(several.grpc_url, model="recommend_staged") as recommender:
            return recommender.recommend(history, 5).item_ids.tolist()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, histories)) == expected
    assert several.restarts == 0


def test_each_process_of_a_model_says_how_many_wait_for_it_and_when_it_started(
    several: RunningServer,
) -> None:
    def processes(name: str) -> list[str]:
        found = scrape(several.metrics_url)
        mine = [each for each in found if each.name == name and each.labels["model"] == "generate"]
        return sorted(each.labels["process"] for each in mine)

    for name in ("genrec_queue_requests", "genrec_process_start_time_seconds"):
        until(lambda name=name: processes(name) == ["0", "1"])


@pytest.mark.long
def test_processes_that_score_have_the_disk_s_bytes_together(tiny_ranker: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"ensembles": ("rank", "pre_infer"), "instances": {"score_candidates": 2}}
    given |= {"pool_disk": str(tmp_path), "pool_fill": "none"}
    with (
        pytest.raises(InputError, match="pool_disk_mb: is 1 for 2 processes of score_candidates"),
        running_server(tiny_ranker, pool_disk_mb=1, **given),
    ):
        pass
    with brief_server(tiny_ranker, pool_disk_mb=3, **given) as server:
        found = [
            file.stat()  # of each file two: a mapping has a descriptor of its own
            for stub in tritonserver.living_stubs(server.pid)
            for file in Path(f"/proc/{stub}/fd").iterdir()
            if os.readlink(file).startswith(str(tmp_path))
        ]
    assert list({each.st_ino: each.st_size for each in found}.values()) == [1 << 20, 1 << 20]


@pytest.mark.parametrize(
    ("ensembles", "user_mb", "said"),
    [
        (
            (),
            256,
            r"is '/.*', and pre_infer is not served, .*accepted: empty; with a ranker \(`genrec train /.* --ranker`",
        ),
        (("rank",), 256, "pre_infer is not served"),
        (("rank", "pre_infer"), 0, "pool_user_mb is 0"),
    ],
)
def test_a_disk_that_nothing_reads_is_refused(
    tiny: Path, tiny_ranker: Path, tmp_path: Path, ensembles: tuple[str, ...], user_mb: int, said: str
) -> None:
    artifact, given = tiny_ranker if ensembles else tiny, {"ensembles": ensembles, "pool_user_mb": user_mb}
    with (
        pytest.raises(InputError, match=f"pool_disk: .*{said}"),
        running_server(artifact, pool_disk=str(tmp_path), **given),
    ):
        pass


def test_a_choice_of_prefix_is_refused_where_no_ranking_reads_it(tiny: Path, tiny_hstu: Path) -> None:
    for artifact, said in (
        (tiny, "nothing is served that ranks"),
        (tiny_hstu, "hstu ranks, which always begins"),
    ):
        with (
            pytest.raises(InputError, match=f"prefix_choice: is recompute, and {said}"),
            running_server(artifact, prefix_choice="recompute"),
        ):
            pass


def test_nodes_that_would_share_nothing_are_refused(tiny: Path, tiny_ranker: Path, tiny_hstu: Path) -> None:
    two: dict[str, Any] = {"nodes": 2, "store": "127.0.0.1:1", "store_host": "127.0.0.1:2"}
    for artifact, given, said in (
        (tiny, {}, "nothing is served that ranks"),
        (tiny_hstu, {}, "hstu ranks, which keeps no items"),
        (tiny_ranker, {"ensembles": ("recommend", "pre_infer")}, "nothing is served that ranks"),
        (tiny_ranker, {"pool_item_mb": 0}, "pool_item_mb is 0"),
    ):
        with (
            pytest.raises(InputError, match=rf"nodes: is 2, and {said}.*\(accepted: 1: nodes share items"),
            running_server(artifact, **two, **given),
        ):
            pass


def test_a_way_to_verify_drafts_is_refused_where_there_are_none(tiny: Path) -> None:
    said = r"verify: is last, and recommend_draft is not served \(accepted: every; `genrec train /.* --draft"
    given: dict[str, Any] = {"ensembles": ("recommend",), "verify": "last"}
    with pytest.raises(InputError, match=said), running_server(tiny, **given):
        pass


@pytest.mark.parametrize(
    ("counts", "said"),
    [({"generat": 2}, "instances: names generat"), ({"generate": 0}, "instances: asks for 0 of generate")],
)
def test_a_wrong_count_is_refused_before_anything_starts(
    tiny: Path, counts: dict[str, int], said: str
) -> None:
    with pytest.raises(InputError, match=said), running_server(tiny, instances=counts):
        pass
