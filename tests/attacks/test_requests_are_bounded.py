"""A request of any size costs a bounded part of /dev/shm, and is refused with the limit's name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from clients.request import request_tensors
from deploy import tritonserver
from deploy.launcher import RunningServer
from deploy.tritonserver import MOST_REGION_BYTES
from ensembles.local import LocalRecommender
from genrec import leftovers
from genrec.errors import GenrecError, InputError
from genrec.settings import MOST_VALUES
from tests.serving.wire import ask, tensors

HUGE = 6 << 20  # item ids: 48 MiB, more than any region


def test_the_longest_history_is_answered_and_a_longer_one_refused(tiny: Path, items: list[int]) -> None:
    with LocalRecommender(tiny, 8) as local:
        longest = np.resize(np.array(items), MOST_VALUES)
        (answer,) = local.recommend([longest.tolist()], 5)
        assert not isinstance(answer, GenrecError) and answer["item_ids"].shape == (1, 5)
        (refused,) = local.recommend([[*longest.tolist(), items[0]]], 5)
    limit = f"history: has {MOST_VALUES + 1} values (accepted: at most {MOST_VALUES})"
    assert isinstance(refused, InputError) and str(refused) == limit


def test_the_client_does_not_even_send_it() -> None:
    assert request_tensors(np.zeros(MOST_VALUES, np.int64), 5)["history"].shape == (1, MOST_VALUES)
    with pytest.raises(InputError, match=rf"history: has {HUGE} items \(accepted: at most {MOST_VALUES}\)"):
        request_tensors(np.zeros(HUGE, np.int64), 5)


def regions(server: RunningServer) -> list[int]:
    """Bytes in /dev/shm of what Triton made for each model."""
    files = leftovers.files_of(server.supervisor.prefix)
    return [path.stat().st_blocks * 512 for path in files if "triton-" in path.name]


@pytest.mark.serving
@pytest.mark.parametrize("module", [tritonclient.grpc, tritonclient.http], ids=["grpc", "http"])
def test_a_huge_request_takes_no_more_of_dev_shm_than_a_model_may(
    server: RunningServer, items: list[int], module: ModuleType
) -> None:
    url = {tritonclient.grpc: server.grpc_url, tritonclient.http: server.http_url}[module]
    pid, restarts, good = server.pid, server.restarts, tensors(items[:3])
    before = ask(module, url, good)["item_ids"]
    for count, said in ((1 << 20, f"at most {MOST_VALUES}"), (HUGE, "Failed to increase the shared memory")):
        with pytest.raises(InferenceServerException, match=said):
            ask(module, url, good | {"history": np.full((1, count), items[0])})
        paths = {"paths": np.zeros((1, count), np.int64), "scores": np.zeros((1, count), np.float32)}
        inner = {"ticket": np.array([[5, 3, 0, 0, 0, 0]]), "excluded": np.array([[-1]], np.int32)}
        with pytest.raises(InferenceServerException, match=said):
            ask(module, url, paths | inner, "validity_lookup")
        assert len(regions(server)) > 3 and max(regions(server)) <= MOST_REGION_BYTES
    np.testing.assert_array_equal(ask(module, url, good)["item_ids"], before)
    assert (server.pid, server.restarts) == (pid, restarts)


GROW = """
import os, sys
from genrec.process import may_write_any_file
def grow(to):
    with open(sys.argv[1], "wb") as file:
        file.truncate(to)
try:
    grow(int(sys.argv[2]) + 1)
except OSError as error:
    print(error.strerror)
grow(int(sys.argv[2]))
may_write_any_file()
grow(int(sys.argv[2]) + 1)
"""


def test_the_limit_is_an_error_not_an_end_and_engines_write_what_they_must(tmp_path: Path) -> None:
    """A stub may keep a compiled graph that is larger than any region."""
    argv = [sys.executable, "-c", GROW, str(tmp_path / "file"), str(MOST_REGION_BYTES)]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process: subprocess.Popen[bytes] = tritonserver.start(argv, environment, tmp_path / "log")
    assert process.wait(60) == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text() == "File too large\n"
    assert (tmp_path / "file").stat().st_size == MOST_REGION_BYTES + 1
