"""Writes the Grafana dashboard from the list of panels below.

    python -m deploy.dashboards.render

A panel is a title, a unit of Grafana's and its queries; where it stands follows from the order. The alerts, written by
hand, are in `rules.yml` beside this. `tests/deploy/test_metrics_dashboards.py` holds both against a server that is
asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
DASHBOARD, RULES = FOLDER / "genrec.json", FOLDER / "rules.yml"
COLUMNS, WIDTH, HEIGHT = 3, 8, 8  # Grafana's grid is 24 wide


class Panel(NamedTuple):
    """`queries` are (legend, PromQL)."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _quantiles(histogram: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"P{100 * q:g}", f"histogram_quantile({q}, sum by (le) (rate({histogram}_bucket[1m])))")
        for q in (0.5, 0.99)
    )


def _mean(histogram: str) -> str:
    sums = (f"sum by (model) (rate({histogram}_{what}[1m]))" for what in ("sum", "count"))
    return " / ".join(sums)


# Of a router: 5xx of a backend without those that its servers sent are what it refused itself, or had no server for.
REFUSED = " - ".join(
    f'sum by (proxy) (rate(haproxy_{of}_http_responses_total{{proxy=~"be_.*", code="5xx"}}[1m]))'
    for of in ("backend", "server")
)
PANELS = (
    Panel(
        "Requests by what became of them",
        "reqps",
        (("{{outcome}}", "sum by (outcome) (rate(genrec_requests_total[1m]))"),),
    ),
    Panel(
        "Share refused or failed, of what was good input",
        "percentunit",
        (
            (
                "all servers",
                'sum(rate(genrec_requests_total{outcome=~"deadline|queue|arena|failed"}[1m]))'
                ' / sum(rate(genrec_requests_total{outcome!="bad_input"}[1m]))',
            ),
        ),
    ),
    Panel(
        "P99 in Triton",
        "µs",
        (
            (
                "{{instance}} {{model}}",
                'nv_inference_request_summary_us{model=~"recommend.*", quantile="0.99"}',
            ),
        ),
    ),
    Panel("Wait for a batch", "s", _quantiles("genrec_queue_seconds")),
    Panel("Time of a batch", "s", _quantiles("genrec_batch_seconds")),
    Panel(
        "Requests that wait",
        "short",
        (
            ("{{instance}} {{model}} for a batch", "sum by (instance, model) (genrec_queue_requests)"),
            ("{{instance}} {{model}} in Triton", "nv_inference_pending_request_count"),
        ),
    ),
    Panel("Requests of a batch", "short", (("{{model}}, mean", _mean("genrec_batch_requests")),)),
    Panel("Tokens per second", "short", (("{{instance}}", "rate(genrec_batch_tokens_sum[1m])"),)),
    Panel("Prompt tokens", "short", _quantiles("genrec_prompt_tokens")),
    Panel(
        "Tokens of prompts that may be kept",
        "short",
        (("{{kind}}", "sum by (kind) (rate(genrec_generate_tokens_total[1m]))"),),
    ),
    Panel(
        "Share of beams that a pass had to score",
        "percentunit",
        (
            (
                "scored of kept",
                'sum(rate(genrec_beams_total{kind="scored"}[1m])) / sum(rate(genrec_beams_total{kind="kept"}[1m]))',
            ),
        ),
    ),
    Panel(
        "Valid of all looked up",
        "percentunit",
        (
            (
                "semantic IDs",
                'sum(rate(genrec_semantic_ids_total{verdict="valid"}[1m])) / sum(rate(genrec_semantic_ids_total[1m]))',
            ),
            (
                "drafts",
                'sum(rate(genrec_draft_beams_total{verdict="valid"}[1m])) / sum(rate(genrec_draft_beams_total[1m]))',
            ),
        ),
    ),
    Panel(
        "Items of histories",
        "short",
        (("{{kind}}", "sum by (kind) (rate(genrec_history_items_total[1m]))"),),
    ),
    Panel(
        "Items of lists",
        "short",
        (("{{kind}}", "sum by (kind) (rate(genrec_list_items_total[1m]))"),),
    ),
    Panel(
        "Catalogue version",
        "short",
        (
            ("{{instance}} {{model}}", "genrec_catalogue_version"),
            ("swaps in an hour", "sum by (instance) (increase(genrec_catalogue_swaps_total[1h]))"),
        ),
    ),
    Panel(
        "Delta of the ranker",
        "short",
        (
            ("{{instance}}", "genrec_model_delta"),
            ("taken in in an hour", "sum by (instance) (increase(genrec_deltas_total[1h]))"),
        ),
    ),
    Panel(
        "Slots of the KV arena",
        "short",
        (
            ("{{instance}} {{state}}", "genrec_arena_slots"),
            ("{{instance}} reaped in an hour", "increase(genrec_arena_reaped_total[1h])"),
        ),
    ),
    Panel(
        "Rankings by what they began with",
        "reqps",
        (("{{order}}", "sum by (order) (rate(genrec_rankings_total[1m]))"),),
    ),
    Panel(
        "Tokens of rankings",
        "short",
        (
            ("{{kind}}", "sum by (kind) (rate(genrec_rank_tokens_total[1m]))"),
            ("bytes copied", "sum(rate(genrec_rank_copied_bytes_total[1m]))"),
        ),
    ),
    Panel(
        "KV pool",
        "short",
        (
            ("{{instance}} {{kind}}", "max without (model) (genrec_pool_entries)"),
            ("{{instance}} bytes of users", "max without (model) (genrec_pool_user_bytes)"),
            ("{{instance}} {{kind}} evicted", "max without (model) (genrec_pool_evicted_entries)"),
            ("{{what}} on disk", "sum by (what) (rate(genrec_pool_tier_total[1m]))"),
        ),
    ),
    Panel(
        "Prefixes ahead of rankings, by what became of the wish",
        "reqps",
        (("{{outcome}}", "sum by (outcome) (rate(genrec_pre_infer_total[1m]))"),),
    ),
    Panel(
        "Prefixes ahead of rankings: how they ended",
        "short",
        (
            ("{{end}}", "sum by (end) (rate(genrec_pre_inferences_total[1m]))"),
            ("tokens computed", "sum(rate(genrec_pre_inferred_tokens_total[1m]))"),
            ("{{instance}} {{end}} since the start", "max without (model) (genrec_pool_leases)"),
        ),
    ),
    Panel(
        "Items computed before anybody asked",
        "short",
        (("{{reason}}", "sum by (reason) (rate(genrec_items_ahead_total[1m]))"),),
    ),
    Panel(
        "Items of several nodes",
        "short",
        (
            ("{{end}}", "sum by (end) (rate(genrec_item_fetches_total[1m]))"),
            ("put by {{instance}}", "rate(genrec_items_put_total[1m])"),
        ),
    ),
    Panel("Refused by the router", "reqps", (("{{proxy}}", REFUSED),)),
    Panel(
        "Before the servers: waiting, and in flight",
        "short",
        (
            ("{{proxy}} waiting", 'haproxy_backend_current_queue{proxy=~"be_.*"}'),
            ("{{proxy}} {{server}} in flight", 'haproxy_server_current_sessions{proxy=~"be_.*"}'),
        ),
    ),
    Panel(
        "Servers by state",
        "short",
        (("{{state}}", 'sum by (state) (haproxy_server_status{proxy="be_grpc"})'),),
    ),
    Panel(
        "Age of model processes",
        "s",
        (("{{instance}} {{model}} {{process}}", "time() - genrec_process_start_time_seconds"),),
    ),
)


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": query, "legendFormat": legend}
            for place, (legend, query) in enumerate(panel.queries)
        ],
    }


def dashboard() -> str:
    """The dashboard as Grafana imports it."""
    about = {
        "uid": "genrec",
        "title": "genrec: generative recommendation on Triton",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(about, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DASHBOARD.write_text(dashboard(), "utf-8")
