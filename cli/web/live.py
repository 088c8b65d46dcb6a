"""How much a server answers now, and how fast: of Triton's metrics."""

from __future__ import annotations

import asyncio
import math
import re
import time
from typing import Any

import aiohttp

from clients.wire import MODEL

SERIES = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
TIMEOUT = aiohttp.ClientTimeout(total=2)


async def live(session: aiohttp.ClientSession, metrics_url: str) -> dict[str, Any]:
    """Seconds on a clock, requests that `recommend` answered so far, its P50 and P99 in ms (null: none lately), and
    requests of all ensembles by outcome. `away` says that the metrics cannot be read.
    """  # fmt: skip
    try:
        async with session.get(f"http://{metrics_url}/metrics", timeout=TIMEOUT) as response:
            numbers = read(await response.text())
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        return {"away": f"{metrics_url}: {type(error).__name__}"}
    return {"seconds": time.monotonic(), **figures(numbers)}


def read(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every series of a scrape that has labels."""
    return [(name, dict(LABEL.findall(labels)), float(value)) for name, labels, value in SERIES.findall(text)]


def figures(numbers: list[tuple[str, dict[str, str], float]]) -> dict[str, Any]:
    """The page's figures out of a scrape."""
    outcomes: dict[str, float] = {}
    answered, quantiles = 0.0, {}
    for name, labels, value in numbers:
        if name == "genrec_requests_total":
            outcomes[labels["outcome"]] = outcomes.get(labels["outcome"], 0.0) + value
        elif labels.get("model") != MODEL:
            continue
        elif name == "nv_inference_request_success":
            answered = value
        elif name == "nv_inference_request_summary_us":
            quantiles[labels["quantile"]] = None if math.isnan(value) else value / 1e3
    return {
        "answered": answered,
        "p50_ms": quantiles.get("0.5"),
        "p99_ms": quantiles.get("0.99"),
        "outcomes": outcomes,
    }
