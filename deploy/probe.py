"""The deep probe: a real request, because Triton's own health stays 200 when a stub is dead (H3).

Plain HTTP and JSON of the standard library: a probe must not share the failure modes of a client library, and
a gRPC call that times out would be a cancel (H2).
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from genrec.catalogue import agreement
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.versions import folder_of, read_current
from genrec.errors import ArtifactError

SUCCESS = re.compile(r'^nv_inference_request_success\{model="([^"]*)",[^}]*\} (\S+)$', re.MULTILINE)

# What ensembles want besides a history, where it is not top_k alone; None: the item.
TOP_1 = ("top_k", "INT32", 1)
PATIENCE = (
    0.6  # of a probe's time: under load a step refuses what it cannot answer in so long, and so is alive
)
EXTRA: dict[str, list[tuple[str, str, int | None]]] = {
    "rank": [TOP_1, ("candidates", "INT64", None)],
    "recommend_and_rank": [TOP_1, ("retrieve", "INT32", 1)],
    "pre_infer": [("user_id", "INT64", None)],
}
# Whoever is asked listens on this machine: a proxy of the environment cannot reach it, and would be told our secrets.
ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True)
class ProbeAnswer:
    """What a probe found: `alive` counts an answer or a refusal under load, `problem` says what else came."""

    alive: bool
    problem: str = ""


def known_item(artifact: Path, swap: Path | None = None) -> int:
    """An item id of the current catalogue; a probe with it goes through every step, an empty history would not.

    Current is what the server with this `swap` folder gives to requests: it may load the version that is pointed to, or
    have refused it. Of the one before where that cannot be read: servers serve it on.
    """
    problem, versions = None, read_current(artifact).newest_first
    if swap:
        with suppress(ArtifactError):  # it ends, or is being made
            versions = (agreement.start_with(swap)[0], *versions)
    for version in versions:
        path = folder_of(artifact, version) / CATALOGUE
        try:
            batch = next(pq.ParquetFile(path).iter_batches(batch_size=1, columns=["item_id"]))
            return int(batch.column(0)[0].as_py())
        except (OSError, ValueError, KeyError, StopIteration) as error:
            problem = problem or ArtifactError(path, f"no item to probe with: {error}")
    assert problem
    raise problem


def server_id(http_url: str, timeout_s: float) -> str:
    """The name of whoever answers at the address, "" when nobody does: on a port race it may be a stranger."""
    try:
        with ask(f"http://{http_url}/v2", timeout=timeout_s) as response:
            return str(json.load(response)["name"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""


def infer(http_url: str, ensemble: str, item_id: int, timeout_s: float) -> ProbeAnswer:
    """One request for one item; never raises. No items is an answer: drafts verified at the end may be lost."""
    due = ("deadline_ms", "INT64" if ensemble == "pre_infer" else "INT32", int(1e3 * PATIENCE * timeout_s))
    wanted = [("history", "INT64", item_id), due, *EXTRA.get(ensemble, [TOP_1])]
    inputs = [
        {"name": name, "shape": [1, 1], "datatype": kind, "data": [item_id if value is None else value]}
        for name, kind, value in wanted
    ]
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(f"http://{http_url}/v2/models/{ensemble}/infer", body, method="POST")
    try:
        with ask(request, timeout=timeout_s) as response:
            outputs = [o["name"] for o in json.load(response)["outputs"]]
    except urllib.error.HTTPError as error:
        text = _said(error)
        # A step that sheds load (503 from inside the ensemble) is alive and says so.
        return ProbeAnswer(error.code == 503 and f"in ensemble '{ensemble}'" in text, f"{error.code}: {text}")
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return ProbeAnswer(False, f"{type(error).__name__}: {error}")
    return ProbeAnswer(True) if "report" in outputs else ProbeAnswer(False, f"answered {outputs}, no report")


def _said(refusal: urllib.error.HTTPError) -> str:
    """What a refusal says. A server in trouble may hang up, or fall silent, before it has said all of it."""
    try:
        return refusal.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"cut short: {type(error).__name__}: {error}"


def infer_all(http_url: str, ensembles: Sequence[str], item_id: int, timeout_s: float) -> dict[str, str]:
    """`infer` of all at once; what is wrong, by ensemble. Nothing is wrong with those left out."""
    with ThreadPoolExecutor(len(ensembles)) as pool:
        answers = pool.map(lambda each: infer(http_url, each, item_id, timeout_s), ensembles)
        return {e: a.problem for e, a in zip(ensembles, answers, strict=True) if not a.alive}


def load_model(http_url: str, model: str, headers: Mapping[str, str], timeout_s: float) -> str:
    """Let the server load a model again, if it has changed; returns the problem, "" when there is none."""
    url = f"http://{http_url}/v2/repository/models/{model}/load"
    request = urllib.request.Request(url, b"{}", dict(headers), method="POST")
    try:
        with ask(request, timeout=timeout_s):
            return ""
    except urllib.error.HTTPError as error:
        return _said(error)
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"


def answered(metrics_url: str, timeout_s: float) -> dict[str, int] | None:
    """How many requests each model has answered so far; None when the metrics cannot be read."""
    try:
        with ask(f"http://{metrics_url}/metrics", timeout=timeout_s) as response:
            text = response.read().decode()
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return {model: int(float(count)) for model, count in SUCCESS.findall(text)}
