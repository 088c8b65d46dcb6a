"""The tables of rankings, and of prefixes ahead of them: see `tables.py`."""

from __future__ import annotations

from perf.kit.table_forms import Column, Figure, Table

PAPERS = "best choice of the paper's two orders"
SWEPT = (
    "requests/s of `{settings[ensemble]}` with P99 within {settings[slo_p99_ms]:g} ms, {settings[artifact]}"
)


def relay_figures(file: str, *own: tuple[str, str]) -> tuple[Figure, ...]:
    """Of a result of `genrec bench relay`; `own` are those that not every one has."""
    named = (
        ("longest history within the budgets, over inline", "longest_history_ratio"),
        ("requests/s within the budgets, over inline", "slo_rate_ratio"),
        *own,
        ("shared backbone over two models", "slo_rate_ratio_shared_backbone"),
        ("longest over shortest history, prefix ready", "ready_growth"),
    )
    ratios = [Figure(what, file, key, "{:.2f}") for what, key in named]
    return (*ratios, Figure("wrong answers", file, "wrong_answers", "{:.0f}"))


def rank_figures(file: str, *own: tuple[str, str, str]) -> tuple[Figure, ...]:
    """Of a result of `genrec bench rank`; `own` are those that not every one has: what, path and form."""
    named = (
        (
            f"requests/s, {PAPERS}, over user first alone",
            "over_user_prefix_paper",
            "{:.2f}",
        ),
        ("the same, all ways", "over_user_prefix", "{:.2f}"),
        (
            f"requests/s, {PAPERS}, over recomputation",
            "over_recompute_paper",
            "{:.2f}",
        ),
        ("the same, all ways", "over_recompute", "{:.2f}"),
        *own,
        ("tokens reused, at most", "reused_share", "{:.0%}"),
        ("time of choice and look-ups, at most", "choice_share", "{:.1%}"),
    )
    return tuple(Figure(what, file, path, form) for what, path, form in named)


def rank_ways(file: str, *own: Column) -> Table:
    """What each way of such a result came to; `own` are columns that not every one has."""
    return Table(
        file, "{words[data]}, {words[model]}, {counted} requests, one at a time but for `together`", "ways",
        (
            Column("requests/s", "ways/*/rate", "{:.2f}"), Column("median ms", "ways/*/ms"), *own,
            Column("tokens reused", "ways/*/reused_share", "{:.0%}"),
            Column("tokens computed", "ways/*/computed_tokens", "{:.0f}"),
            Column("choice and look-ups", "ways/*/choice_share", "{:.1%}"),
            Column("requests/s within the P99", "ways/*/slo_rate", "{:.2f}"),
        ),
        "begins with",
    )  # fmt: skip


POOL_SIM = Table(
    "pool_sim", "whole trace in the shape of Books, the paper's own model, counted and not timed: over recomputation",
    "simulated/books",
    (
        Column("by tokens", "simulated/books/*/speedup", "{:.2f}"),
        Column("by operations", "simulated/books/*/speedup_operations", "{:.2f}"),
        Column("tokens reused", "simulated/books/*/reused", "{:.0%}"),
    ),
    "begins with",
)  # fmt: skip


def own_backbone(artifact: str) -> Table:
    """NDCG@10 of every training, over the generator's layers as they are and with layers that learn throughout."""
    trained = f"rankers/{artifact}"
    return Table(
        f"rank_quality-{artifact}-own", f"{artifact}, NDCG@10", f"{trained}/own",
        (
            Column("seed", f"{trained}/own/*/seed", "{}"),
            *(
                Column(f"{layers}, {what}", f"{trained}/{row}/*/orders/split/{found}/NDCG@10", "{:.4f}")
                for what, found in (("alone", "alone"), ("with the generator's part", "with generator"))
                for layers, row in (("the generator's layers", "split"), ("its own", "own"))
            ),
        ),
    )  # fmt: skip


def placement_links(file: str) -> Table:
    """Placements on real links, a row for each bandwidth."""
    return Table(
        file, "requests/s of one of {settings[nodes]} nodes, model {settings[model]}, order split", "links",
        (
            Column("as if, in the paper's cluster", "links/*/as_if_gbit_s", "{:.0f}"),
            Column("all items on every node", "links/*/replicate/rate"),
            Column("each on one", "links/*/hash/rate"),
            Column("hot ones on every node", "links/*/hrcs/rate"),
            Column("hot ones, of all items", "links/*/hrcs/copied", "{:.0%}"),
        ),
        "Gbit/s that a node may send",
    )  # fmt: skip


RANKINGS: dict[str, tuple[Figure, ...] | Table] = {
    "rank": rank_figures("rank"),
    "rank-ways": rank_ways("rank"),
    "rank-codes": rank_figures("rank-codes"),
    "rank-ways-codes": rank_ways("rank-codes"),
    "rank-ml-1m": rank_figures("rank-ml-1m"),
    "rank-ways-ml-1m": rank_ways("rank-ml-1m"),
    "rank-in-proportion": rank_figures(
        "rank-in-proportion",
        (f"requests/s with P99 within {{settings[slo_ms]:g}} ms, {PAPERS}, over user first alone",
         "slo_rate_over_user_prefix_paper", "{:.2f}"),
        ("the same, all ways", "slo_rate_over_user_prefix", "{:.2f}"),
    ),
    "rank-ways-in-proportion": rank_ways("rank-in-proportion"),
    "rank-traces": (
        Figure(f"requests/s, {PAPERS}, over recomputation", "rank-traces", "over_recompute_paper", "{:.2f}"),
    ),
    "rank-each-trace": Table(
        "rank-traces", "{words[data]}, {words[model]}, {settings[requests]} requests each: requests/s of the best rule "
        "for the paper's orders over recomputation", "traces",
        (Column("times", "traces/*/over_recompute_paper", "{:.2f}"),), "trace of seed",
    ),
    "rank-ways-traces": rank_ways("rank-traces", Column("least ms, on average", "ways/*/least_ms")),
    "pool-sim": POOL_SIM,
    "placement-links": placement_links("placement_links"),
    "placement-links-larger": placement_links("placement_links-larger"),
    "rank-together": Table(
        "rank_together",
        "a pass, model {settings[model]}, a user of {settings[user_tokens]} tokens whose entry is there", "cells",
        (
            Column("order", "cells/*/order", "{}"),
            Column("candidates", "cells/*/candidates", "{}"),
            Column("ms", "cells/*/ms", "{:.2f}"),
            Column("two in one pass gain", "cells/*/two", "{:.2f}"),
            Column("four", "cells/*/four", "{:.2f}"),
        ),
    ),
    "rank-company": Table(
        "rank_company",
        "`rank` by a server, model {settings[model]}, {settings[in_flight]} in flight, users of {settings[history]} "
        "items; users and items are in the pool", "cells",
        (
            Column("candidates", "cells/*/candidates", "{}"),
            Column("answers/s, each a pass of its own", "cells/*/apart", "{:.0f}"),
            Column("together", "cells/*/together", "{:.0f}"),
            Column("gain", "cells/*/gain", "{:.2f}"),
            Column("P99 ms, each a pass of its own", "cells/*/apart_p99_ms", "{:.0f}"),
            Column("P99 ms together", "cells/*/together_p99_ms", "{:.0f}"),
        ),
    ),
    "rank-peers": Table(
        "rank_peers", "100 candidates of 3 codes behind a user's tokens, 31 M parameters", "cells",
        (
            Column("system", "cells/*/system", "{}"), Column("user's tokens", "cells/*/prompt", "{}"),
            Column("ms", "cells/*/ms"), Column("least ms", "cells/*/least_ms"),
            Column("times ours, both there", "cells/*/over_ours"),
        ),
    ),
    "rank-sweep": (
        Figure(SWEPT, "sweep-rank", "highest_rate", "{:.0f}"),
        Figure("P99 of the replayer's own arrivals at that rate, ms", "sweep-rank", "cross_check/p99_ms", "{:.0f}"),
    ),
    "rank-sweep-both": (
        Figure(SWEPT, "sweep-recommend_and_rank", "highest_rate", "{:.0f}"),
        Figure("one at a time, ms", "sweep-recommend_and_rank", "sequential_ms"),
        Figure("P99 of the replayer's own arrivals at that rate, ms", "sweep-recommend_and_rank",
               "cross_check/p99_ms", "{:.0f}"),
    ),
    "rank-quality": tuple(
        Figure(f"{name}: {what}", f"rank_quality-{name}", f"{claim}/{name}", "{:.3f}")
        for name in ("ml-1m", "beauty")
        for what, claim in (
            ("item order over user order", "item_over_user_ndcg10"),
            ("split over user order", "split_over_user_ndcg10"),
            ("split and the generator's part over the generator alone", "ranked_over_generator_ndcg10"),
        )
    ),
    "rank-quality-reach": tuple(
        Figure(f"ml-1m, seed {{settings[seeds]}}: the newest {{settings[reach]}} of a user's tokens over all, {what}",
               f"rank_quality-{file}", f"{claim}/ml-1m", "{:.3f}")
        for file in ("ml-1m-reach", "ml-1m-reach-seed1", "ml-1m-reach-seed2")
        for what, claim in (
            ("ranker alone", "reach_over_split_ndcg10"),
            ("with the generator's part", "reach_over_split_together_ndcg10"),
        )
    ),
    "rank-quality-layers": tuple(
        Figure(f"{name}: half the layers over all, {what}", f"rank_quality-{name}-layers", f"{claim}/{name}", "{:.3f}")
        for name in ("ml-1m", "beauty")
        for what, claim in (
            ("ranker alone", "layers_over_split_ndcg10"),
            ("with the generator's part", "layers_over_split_together_ndcg10"),
        )
    ),
    "rank-quality-own": tuple(
        Figure(f"{name}: the generator's layers over its own, ranker alone", f"rank_quality-{name}-own",
               f"shared_over_own_ndcg10/{name}", "{:.3f}")
        for name in ("ml-1m", "beauty")
    ),
    **{f"rank-quality-own-{name}": own_backbone(name) for name in ("ml-1m", "beauty")},
    "rank-quality-next": tuple(
        Figure(
            f"{name}: its list over the generator's", f"rank_quality-{name}-next",
            f"ranked_over_generator_ndcg10/{name}", "{:.3f}",
        )
        for name in ("ml-1m", "beauty")
    ),
    "relay": relay_figures(
        "relay",
        ("the same, half of the users come again", "slo_rate_ratio_returning_50"),
        ("two servers, users fixed to one, over any", "slo_rate_ratio_affinity"),
        ("core-ms a request over inline, a tenth abandoned, all computed ahead", "compute_ratio_at_length"),
    ),
    "relay-ways": relay_figures(
        "relay-ways",
        ("the same, half of the users come again", "slo_rate_ratio_returning_50"),
        ("the same, half brought back from disk", "slo_rate_ratio_second_tier_50"),
        ("two servers, users fixed to one, over any", "slo_rate_ratio_affinity"),
        ("clients at once within the budgets, over inline", "concurrency_ratio"),
        ("core-ms a request over inline, a tenth abandoned, mixture", "compute_ratio"),
        ("tokens computed, the same", "computed_tokens_ratio"),
        ("shared backbone, two calls, over two models", "slo_rate_ratio_shared_two_calls"),
    ),
    "relay-reach": relay_figures(
        "relay-reach",
        ("clients at once within the budgets, over inline", "concurrency_ratio"),
        ("core-ms a request over inline, a tenth abandoned, mixture", "compute_ratio"),
        ("tokens computed, the same", "computed_tokens_ratio"),
    ),
    "relay-one-core": (
        Figure("core-ms a request over inline, a tenth abandoned, all computed ahead", "relay-one-core",
               "compute_ratio_at_length", "{:.3f}"),
        Figure("the same, mixture", "relay-one-core", "compute_ratio", "{:.3f}"),
        Figure("tokens computed, mixture", "relay-one-core", "computed_tokens_ratio", "{:.3f}"),
        Figure("clients at once within the budgets, over inline", "relay-one-core", "concurrency_ratio", "{:.2f}"),
        Figure("requests/s within the budgets, over inline", "relay-one-core", "slo_rate_ratio", "{:.2f}"),
        Figure("longest history within the budgets, over inline", "relay-one-core", "longest_history_ratio", "{:.2f}"),
        Figure("wrong answers", "relay-one-core", "wrong_answers", "{:.0f}"),
    ),
    "relay-alone-reach": Table(
        "relay-reach", "a ranking alone, model {model}, scores read {settings[reach]} tokens, ms", "alone",
        (Column("inline", "alone/*/inline"), Column("prefix ready", "alone/*/ready")), "tokens of the history",
    ),
    "relay-alone": Table(
        "relay", "a ranking alone on its server, model {model}, ms", "alone",
        (Column("inline", "alone/*/inline"), Column("prefix ready", "alone/*/ready")), "tokens of the history",
    ),
    "relay-flood": Table(
        "relay_flood", "{settings[flood]:.0f} signals a second of {settings[flood_tokens]} tokens beside "
        "{settings[rate]:.0f} cascades of {settings[tokens]}, P99 of rankings", "p99_ms",
        (Column("ms", "p99_ms/*"),), "way",
    ),
    "relay-fetch": Table(
        "relay_fetch", "a user's prefix, model {model}, {token_bytes} bytes a token, ms", "ms",
        (
            Column("read where it lies", "ms/*/local", "{:.2f}"), Column("fetched from the other node", "ms/*/remote"),
            Column("computed again", "ms/*/computed"),
        ),
        "tokens of the history",
    ),
}  # fmt: skip
