"""What a server counts about itself: plain numbers in memory, and the one list of them.

Steps count into the families below. In Triton a model publishes them for Prometheus (`genrec.triton.metrics`); the
local runtime, or a test, reads `samples`. Names follow Prometheus' conventions: a unit at the end, `_total` for
counters. The table in docs/operating.md, the dashboard and the alerts are held against this list.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, product
from typing import NamedTuple

from genrec.report import PRE_INFER_OUTCOMES

Labels = tuple[tuple[str, str], ...]

ANSWERED, POPULARITY, BAD_INPUT, DEADLINE, QUEUE, ARENA, FAILED = OUTCOMES = (
    "answered", "popularity", "bad_input", "deadline", "queue", "arena", "failed",
)  # fmt: skip
EVERY_MODEL: tuple[str, ...] = ()


class MetricSample(NamedTuple):
    """One number of a family, as Prometheus has it; `rises` says that it is a counter."""

    name: str
    labels: Labels
    value: float
    rises: bool


class MetricFamily:
    """A name, what it means, the values of each label, and the models that publish it (none: all of them)."""

    kind = ""

    def __init__(
        self, name: str, help: str, models: Sequence[str] = EVERY_MODEL, **labels: Sequence[str]
    ) -> None:
        self.name, self.help, self.models, self.labels = name, help, tuple(models), labels
        self._lock = threading.Lock()
        # All from the start at 0: of a series that begins at 1, Prometheus would never see the first rise.
        self._values: dict[tuple[str, ...], float] = dict.fromkeys(product(*labels.values()), 0.0)

    def value(self, **labels: str) -> float:
        """The number now. Raises KeyError for labels that the family has not."""
        return self._values[self._key(labels)]

    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus finds it."""
        return (self.name,)

    def samples(self) -> Iterator[MetricSample]:
        """All numbers of the family."""
        with self._lock:
            values = list(self._values.items())
        for key, value in values:
            yield MetricSample(
                self.name, tuple(zip(self.labels, key, strict=True)), value, self.kind != "gauge"
            )

    def _key(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        key = tuple(labels[name] for name in self.labels)
        if len(labels) != len(key) or key not in self._values:
            raise KeyError(f"{self.name}: {dict(labels)} (accepted: {self.labels})")
        return key


class Counter(MetricFamily):
    """It only rises; any thread may add."""

    kind = "counter"

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count `amount` more."""
        key = self._key(labels)
        with self._lock:
            self._values[key] += amount


class Gauge(MetricFamily):
    """It rises and falls."""

    kind = "gauge"

    def set(self, value: float, **labels: str) -> None:
        """The number from now on."""
        key = self._key(labels)
        with self._lock:
            self._values[key] = value


class ProcessGauge(Gauge):
    """Each process of a model has its own, under a label `process`."""


class Histogram(MetricFamily):
    """How many observations were at most each bound: `name_bucket{le=...}`, `name_sum` and `name_count`.

    Triton 2.51 has histograms of its own, but each observation is a message from the model's process to the server.
    Counters per bucket are sent once a second, however many requests there were.
    """

    kind = "histogram"

    def __init__(
        self, name: str, help: str, bounds: Sequence[float], models: Sequence[str] = EVERY_MODEL
    ) -> None:
        super().__init__(name, help, models)
        self.bounds = tuple(bounds)
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        place = bisect_left(self.bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def series(self) -> tuple[str, ...]:
        """See `MetricFamily.series`."""
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))

    def samples(self) -> Iterator[MetricSample]:
        """See `MetricFamily.samples`; buckets are cumulative, the last one is +Inf."""
        with self._lock:
            counts, total = list(accumulate(self._counts)), self._sum
        for bound, count in zip((*(f"{b:g}" for b in self.bounds), "+Inf"), counts, strict=True):
            yield MetricSample(f"{self.name}_bucket", (("le", bound),), count, True)
        yield MetricSample(f"{self.name}_sum", (), total, True)
        yield MetricSample(f"{self.name}_count", (), counts[-1], True)


_PROMPTS = ("generate", "prefill_draft")
_QUEUES = (*_PROMPTS, "score_candidates")
_VERSIONED = (
    "encode_history", "encode_candidates", "encode_prefix", "generate", "score_candidates", "beam_search",
    "draft_beam", "validity_lookup",
)  # fmt: skip
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

REQUESTS = Counter(
    "genrec_requests_total",
    "requests that ended in this model, by what became of them; probes and warm-ups count too",
    outcome=OUTCOMES,
)
PROCESS_START = ProcessGauge(
    "genrec_process_start_time_seconds", "when a process of the model last started (Unix time)"
)
HISTORY_ITEMS = Counter(
    "genrec_history_items_total",
    "items of histories: read by the model, not in the catalogue, or beyond what the model reads",
    ("encode_history",), kind=("read", "unknown", "cut"),
)  # fmt: skip
PROMPT_TOKENS = Histogram(
    "genrec_prompt_tokens", "tokens of a prompt", (0, 16, 32, 64, 128, 256, 512, 1024), ("encode_history",)
)
GENERATE_TOKENS = Counter(
    "genrec_generate_tokens_total", "tokens of prompts that may be kept: whose KV was reused, and that were computed",
    _PROMPTS, kind=("reused", "computed"),
)  # fmt: skip
QUEUE_REQUESTS = ProcessGauge("genrec_queue_requests", "requests that wait for a batch now", _QUEUES)
QUEUE_SECONDS = Histogram(
    "genrec_queue_seconds", "how long a request waited for its batch", _SECONDS, _QUEUES
)
BATCH_SECONDS = Histogram("genrec_batch_seconds", "how long a batch took", _SECONDS, _QUEUES)
BATCH_REQUESTS = Histogram("genrec_batch_requests", "requests of a batch", (1, 2, 4, 8), _QUEUES)
BATCH_TOKENS = Histogram(
    "genrec_batch_tokens", "tokens of a batch: prompts, and a token of every beam and level",
    (64, 128, 256, 512, 1024, 2048, 4096), _PROMPTS,
)  # fmt: skip
BEAMS = Counter(
    "genrec_beams_total",
    "beams that a level started from (kept), and those that a pass had to score; not of `cuda`, which scores all",
    ("generate",), kind=("kept", "scored"),
)  # fmt: skip
DRAFT_BEAMS = Counter(
    "genrec_draft_beams_total", "beams of drafts by what verification said of them",
    ("draft_beam",), verdict=("valid", "lost"),
)  # fmt: skip
SEMANTIC_IDS = Counter(
    "genrec_semantic_ids_total", "semantic IDs looked up before they were answered; an invalid one is never answered",
    ("validity_lookup",), verdict=("valid", "invalid"),
)  # fmt: skip
LIST_ITEMS = Counter(
    "genrec_list_items_total", "items of lists: answered, and those that lists are shorter than was asked for",
    ("validity_lookup",), kind=("answered", "short"),
)  # fmt: skip
CATALOGUE_VERSION = Gauge("genrec_catalogue_version", "catalogue version of new requests", _VERSIONED)
CATALOGUE_SWAPS = Counter("genrec_catalogue_swaps_total", "catalogue versions taken over", _VERSIONED)
CATALOGUE_REFUSALS = Counter(
    "genrec_catalogue_refusals_total", "catalogue versions that could not be loaded", _VERSIONED
)
MODEL_DELTA = Gauge(
    "genrec_model_delta", "the last delta of the ranker that is taken in; 0: as exported", ("score_candidates",),
)  # fmt: skip
DELTAS = Counter("genrec_deltas_total", "deltas taken in between two requests", ("score_candidates",))
DELTA_REFUSALS = Counter(
    "genrec_delta_refusals_total", "deltas that were not sound, or not to this model", ("score_candidates",)
)
ARENA_SLOTS = Gauge(
    "genrec_arena_slots", "slots of the KV arena; only recommend_staged has one", ("prefill",),
    state=("free", "held", "idle", "done"),
)  # fmt: skip
ARENA_REAPED = Counter(
    "genrec_arena_reaped_total", "slots taken back from requests that were lost", ("prefill",)
)
RANKINGS = Counter(
    "genrec_rankings_total", "rankings by what they began with: the user, the items, both apart, or nothing reused",
    ("score_candidates",), order=("user", "item", "split", "whole"),
)  # fmt: skip
RANK_TOKENS = Counter(
    "genrec_rank_tokens_total", "tokens of rankings whose KV was reused, and those that were computed",
    ("score_candidates",), kind=("user_reused", "items_reused", "computed"),
)  # fmt: skip
RANK_COPIED = Counter(
    "genrec_rank_copied_bytes_total", "bytes of KV that rankings copied", ("score_candidates",)
)
PRE_INFER = Counter(
    "genrec_pre_infer_total", "wishes to compute a user's prefix ahead of his ranking, by what became of them",
    ("score_candidates",), outcome=PRE_INFER_OUTCOMES,
)  # fmt: skip
PRE_INFERENCES = Counter(
    "genrec_pre_inferences_total",
    "admitted pre-inferences by how they ended: overtaken, the ranking finished it; not_begun, it came first; "
    "late, it was due; no_time, the queue was full",
    ("score_candidates",),
    end=("made", "overtaken", "not_begun", "late", "no_time", "old_weights", "no_place", "failed"),
)
PRE_INFERRED_TOKENS = Counter(
    "genrec_pre_inferred_tokens_total", "tokens of users that pre-inferences computed", ("score_candidates",)
)
POOL_TIER = Counter(
    "genrec_pool_tier_total", "entries of users in the second tier: copied to disk, brought back, and dropped there",
    ("score_candidates",), what=("kept", "restored", "dropped"),
)  # fmt: skip
AHEAD = ("popular", "new", "hot")
ITEMS_AHEAD = Counter(
    "genrec_items_ahead_total", "items whose KV was computed before anybody asked for it, by why",
    ("score_candidates",), reason=AHEAD,
)  # fmt: skip
ITEM_FETCHES = Counter(
    "genrec_item_fetches_total",
    "items that rankings missed and asked other nodes for; those absent there too, or late, were computed",
    ("score_candidates",), end=("brought", "absent", "late"),
)  # fmt: skip
ITEMS_PUT = Counter(
    "genrec_items_put_total", "items that this node has put into the store of several", ("score_candidates",)
)
_POOLED = ("prefix_choice", *_PROMPTS)  # who has the pool says the same of it; others say 0
POOL_BYTES = Gauge("genrec_pool_user_bytes", "bytes of users' KV in the pool", _POOLED)
POOL_ENTRIES = Gauge("genrec_pool_entries", "entries in the pool", _POOLED, kind=("users", "items"))
POOL_EVICTED = Gauge(
    "genrec_pool_evicted_entries", "entries that left for others since the server started", _POOLED,
    kind=("users", "items"),
)  # fmt: skip
POOL_LEASES = Gauge(
    "genrec_pool_leases", "entries made before anybody asked for them, since the server started: used, or gone unused",
    _POOLED, end=("used", "unused"),
)  # fmt: skip

FAMILIES: tuple[MetricFamily, ...] = (
    REQUESTS, PROCESS_START, HISTORY_ITEMS, PROMPT_TOKENS, GENERATE_TOKENS, QUEUE_REQUESTS, QUEUE_SECONDS,
    BATCH_SECONDS, BATCH_REQUESTS, BATCH_TOKENS, BEAMS, DRAFT_BEAMS, SEMANTIC_IDS, LIST_ITEMS, CATALOGUE_VERSION,
    CATALOGUE_SWAPS, CATALOGUE_REFUSALS, MODEL_DELTA, DELTAS, DELTA_REFUSALS, ARENA_SLOTS, ARENA_REAPED, RANKINGS,
    RANK_TOKENS, RANK_COPIED, PRE_INFER, PRE_INFERENCES, PRE_INFERRED_TOKENS, POOL_TIER, ITEMS_AHEAD, ITEM_FETCHES,
    ITEMS_PUT, POOL_BYTES, POOL_ENTRIES, POOL_EVICTED, POOL_LEASES,
)  # fmt: skip
PROCESS_START.set(time.time())


def families_of(model: str) -> list[MetricFamily]:
    """What a model publishes."""
    return [family for family in FAMILIES if not family.models or model in family.models]


def samples(model: str) -> Iterator[MetricSample]:
    """Every number that a model publishes, now."""
    for family in families_of(model):
        yield from family.samples()


def table() -> str:
    """The families as Markdown for docs/operating.md."""
    rows = [
        f"| `{family.name}` | {family.kind} | {_labels_in_words(family)} | "
        f"{', '.join(f'`{m}`' for m in family.models) or 'every model'} | {family.help} |"
        for family in FAMILIES
    ]
    head = ["| name | kind | labels beside `model` | of | what it is |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _labels_in_words(family: MetricFamily) -> str:
    labels = family.labels | ({"process": ["from 0"]} if isinstance(family, ProcessGauge) else {})
    return "; ".join(f"`{name}`: {', '.join(values)}" for name, values in labels.items())
