"""The tables of README and docs: which saved results, which of their fields."""

from __future__ import annotations

from perf.kit import table_kinds as kinds
from perf.kit.table_forms import Column, Figure, Grid, Table

PEERS = "requests a second at the better of 1 and 4 at a time, {settings[cores]} cores"


TABLES: dict[str, tuple[Figure, ...] | Table | Grid] = {
    "headline": (
        Figure("times the requests/s of the fastest peer, 31 M parameters, beam width 128", "peers", "ratio_bw128"),
        Figure("the same, beam width 512", "peers", "ratio_bw512"),
        *kinds.COME_AGAIN,
        Figure("requests/s with P99 within 100 ms, MovieLens 100K", "sweep", "highest_rate", "{:.0f}"),
        Figure("HR@10 on MovieLens 100K, seen items removed", "quality", "model/HR@10", "{:.4f}"),
        Figure("longest time to answer again after a killed process, s", "recovery", "worst_recovery_s"),
        Figure("ms of a request on a GPU: 1,000 tokens, Qwen3-1.7B, beam width 256", "gpu", "ms/s1000_b1"),
    ),
    "peers": Grid("peers", PEERS, "cells", "{model}, {system}", "{prompt} tokens, BW {beam_width}", "best_rate"),
    "peers-memory": Grid(
        "peers", "peak MiB", "cells", "{model}, {system}", "{prompt} tokens, BW {beam_width}", "peak_mib", "{:.0f}"
    ),
    "peers-gemm": Table(
        "peers", "share of the rate of a plain product ({gemm_gflops:.0f} GFLOP/s)", "of_gemm_peak",
        (Column("prefill", "of_gemm_peak/*/prefill", "{:.0%}"), Column("decode", "of_gemm_peak/*/decode", "{:.0%}")),
        "cell",
    ),
    "stages": Table(
        "stages", "{settings[artifact]}, one request at a time, ms", "p50_ms",
        (
            Column("P50", "p50_ms/*"), Column("P99", "p99_ms/*"),
            Column("prefill", "stages_ms/*/prefill"), Column("decode", "stages_ms/*/decode"),
            Column("beam search", "stages_ms/*/beam_search"), Column("Triton's hops", "hops_ms/*"),
        ),
        "beam width",
    ),
    **kinds.OVERLOAD, **kinds.GPU, "pool-sim": kinds.POOL_SIM,
    "ablation": Table(
        "ablation", "{settings[artifact]}, beam width {settings[beam_width]}, 16 in flight", "arms",
        (Column("answers/s", "arms/*/capacity"), Column("P50 ms, one at a time", "arms/*/p50_ms")), "served by",
    ),
    **{
        file: Table(
            file, "{settings[artifact]}, P99 within {settings[slo_p99_ms]:g} ms", "arms",
            (Column("highest rate, requests/s", "arms/*/highest_rate"),), "batches",
        )
        for file in ("batching", "batching-ml-100k")
    },
    "engine_ablation": Table(
        "engine_ablation", "{settings[artifact]}, beam width {settings[beam_width]}, one process", "ways",
        (
            Column("requests/s", "ways/*/requests_s"), Column("P50 ms", "ways/*/p50_ms"),
            Column("P99 ms", "ways/*/p99_ms"), Column("beams that are items", "ways/*/valid", "{:.1%}"),
        ),
        "way",
    ),
    "instances": Table(
        "instances", "{settings[artifact]}, beam width {settings[beam_width]}, 16 in flight", "arms",
        (Column("answers/s", "arms/*/capacity"), Column("P50 ms, one at a time", "arms/*/p50_ms", "{:.2f}")),
        "served by",
    ),
    "company": Table(
        "company", "{settings[artifact]}, beam width {settings[beam_width]}, {capacity:.0f} prompts/s at most", "waits",
        (Column("P50 ms", "waits/*/p50_ms", "{:.2f}"), Column("P99 ms", "waits/*/p99_ms", "{:.2f}")),
        "share of the capacity, wait",
    ),
    "quality": (
        Figure("HR@10", "quality", "model/HR@10", "{:.4f}"),
        Figure("NDCG@10", "quality", "model/NDCG@10", "{:.4f}"),
        Figure("HR@10 of transition counts", "quality", "transition counts/HR@10", "{:.4f}"),
        Figure("NDCG@10 of transition counts", "quality", "transition counts/NDCG@10", "{:.4f}"),
    ),
    **kinds.RETURNING, "returning-peers": kinds.RETURNING_PEERS, "window-quality": kinds.WINDOWS,
    "sweep": (
        Figure("requests/s that hold the P99", "sweep", "highest_rate", "{:.0f}"),
        Figure("P99 of the replayer's own arrivals at that rate, ms", "sweep", "cross_check/p99_ms", "{:.0f}"),
    ),
    "recovery": (
        Figure("longest time to answer again after a killed process, s", "recovery", "worst_recovery_s"),
        Figure("the same after a stopped process, s", "recovery", "worst_stopped_s"),
        Figure("wrong answers", "recovery", "wrong_answers", "{:.0f}"),
        Figure("processes left behind", "recovery", "orphans", "{:.0f}"),
    ),
    "passes": Table(
        "passes", "{settings[artifact]}, beam width 512", "512",
        (Column("P50 ms", "512/*/p50_ms"), Column("beams scored", "512/*/beams", "{:.0f}")), "asked for",
    ),
    "memory": Table(
        "memory", "peak of a request over the loaded engine, KV in {kv_type}, MB", "cells",
        (
            Column("prompt tokens", "cells/*/prompt", "{}"), Column("beam width", "cells/*/beam_width", "{}"),
            Column("ours", "cells/*/ours_mb"), Column("of it KV", "cells/*/ours_kv_mb"),
            Column("a copy per beam", "cells/*/per_beam_mb"), Column("of it KV", "cells/*/per_beam_kv_mb"),
        ),
    ),
    "hashset": Table(
        "hashset", "1000000 random semantic IDs, codebooks of 1,024, 262,144 candidates at once",
        "figures/1000000 items, T=1024",
        (
            Column("ns per lookup", "figures/1000000 items, T=1024/*/ns_per_lookup"),
            Column("bytes per item", "figures/1000000 items, T=1024/*/bytes_per_item"),
        ),
        "held as",
    ),
    "constraint": (
        Figure("a search step, of a decode pass", "constraint", "step_share_1m", "{:.1%}"),
        Figure("what the constraint adds, of a decode pass", "constraint", "constraint_share_1m", "{:.1%}"),
        Figure("MB per million items", "constraint", "mb_per_million"),
    ),
    "decoders": Table(
        "decoders", "one request at a time", "speed",
        (
            Column("ensemble", "speed/*/ensemble", "{}"), Column("beam width", "speed/*/beam_width", "{}"),
            Column("P50 ms", "speed/*/p50_ms"),
        ),
    ),
    "rank": kinds.rank_figures("rank"),
    "rank-ways": kinds.rank_ways("rank", "shape of Books, 31 M parameters"),
    "rank-codes": kinds.rank_figures("rank-codes"),
    "rank-ways-codes": kinds.rank_ways(
        "rank-codes", "shape of Books with items of 3 codes, 31 M parameters"
    ),
    "rank-ml-1m": kinds.rank_figures("rank-ml-1m"),
    "rank-ways-ml-1m": kinds.rank_ways("rank-ml-1m", "users of MovieLens 1M, 31 M parameters"),
    "rank-in-proportion": kinds.rank_figures(
        "rank-in-proportion",
        ("requests/s with P99 within 200 ms over user order alone, the paper's orders",
         "slo_rate_over_user_prefix_paper", "{:.2f}"),
        ("the same, all ways", "slo_rate_over_user_prefix", "{:.2f}"),
    ),
    "rank-ways-in-proportion": kinds.rank_ways(
        "rank-in-proportion", "Books in the paper's proportion, model {settings[model]}, {counted} requests"
    ),
    "rank-peers": Table(
        "rank_peers", "100 candidates of 3 codes behind a user's tokens, 31 M parameters", "cells",
        (
            Column("system", "cells/*/system", "{}"), Column("user's tokens", "cells/*/prompt", "{}"),
            Column("ms", "cells/*/ms"), Column("times ours, both there", "cells/*/over_ours"),
        ),
    ),
    "embedding": (
        Figure("look-up, torch.searchsorted over ours, a million ids", "embedding", "over_searchsorted_1m"),
        Figure("the same, ten million", "embedding", "over_searchsorted_10m"),
        Figure("bytes per id beside its vector", "embedding", "bytes_per_key"),
        Figure("longest pause of an insert while it grows, ms", "embedding", "largest_pause_ms"),
        Figure("time of a static table over that of a training look-up", "embedding", "over_static", "{:.2f}"),
        Figure("look-ups trained per second over managed collisions", "embedding", "over_mch", "{:.2f}"),
    ),
    "training": (
        Figure("samples/s over TorchRec, dimension 64", "training", "over_torchrec_dim64", "{:.2f}"),
        Figure("the same, dimension 512", "training", "over_torchrec_dim512", "{:.2f}"),
        Figure("bytes sent without deduplication over with it, 8 ranks", "training", "dedup_bytes_ratio", "{:.2f}"),
        Figure("rows read, the same", "training", "rows_read_ratio", "{:.2f}"),
        Figure("tokens of the fullest rank over the mean, 64 ranks", "training", "token_imbalance", "{:.3f}"),
        Figure("HSTU layer, plain formula over ours, time at least", "hstu_attention", "time_ratio_worst", "{:.2f}"),
        Figure("the same, peak memory at least", "hstu_attention", "memory_ratio_worst", "{:.2f}"),
    ),
    "rank-sweep": (
        Figure("requests/s of `rank` with P99 within 50 ms", "sweep-rank", "highest_rate", "{:.0f}"),
        Figure("P99 of the replayer's own arrivals at that rate, ms", "sweep-rank", "cross_check/p99_ms", "{:.0f}"),
    ),
    "rank-sweep-both": (
        Figure("requests/s of `recommend_and_rank` with P99 within 50 ms", "sweep-recommend_and_rank",
               "highest_rate", "{:.0f}"),
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
        Figure(f"ml-1m, seed {seed}: the newest 12 of a user's tokens over all, {what}", f"rank_quality-{file}",
               f"{claim}/ml-1m", "{:.3f}")
        for seed, file in enumerate(("ml-1m-reach", "ml-1m-reach-seed1", "ml-1m-reach-seed2"))
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
    "rank-quality-next": tuple(
        Figure(
            f"{name}: its list over the generator's", f"rank_quality-{name}-next",
            f"ranked_over_generator_ndcg10/{name}", "{:.3f}",
        )
        for name in ("ml-1m", "beauty")
    ),
    "placement": Table(
        "placement", "requests/s of four nodes with order split, computed, not measured", "policies/split",
        (
            Column("all items on every node", "policies/split/*/replicate/rate"),
            Column("each on one", "policies/split/*/hash/rate"),
            Column("hot ones on every node", "policies/split/*/hrcs/rate"),
            Column("the best share that was tried", "policies/split/*/best tried/rate"),
        ),
        "Gbit/s between nodes",
    ),
    "next-quality": Table(
        "next_quality", "last item of every user, one training each", "artifacts",
        (
            Column("HR@10", "artifacts/*/whole catalogue/HR@10", "{:.4f}"),
            Column("NDCG@10", "artifacts/*/whole catalogue/NDCG@10", "{:.4f}"),
            Column("of the generator's list", "artifacts/*/generator's candidates, its order/NDCG@10", "{:.4f}"),
            Column("the list ranked by HSTU", "artifacts/*/the same, by HSTU/NDCG@10", "{:.4f}"),
            Column("by both", "artifacts/*/the same, both together/NDCG@10", "{:.4f}"),
        ),
        "data set",
    ),
    "table-quality": Table(
        "table_quality", "{settings[artifact]}, seeds {settings[seeds]}, {cold_share:.0%} of the rows cold", "compared",
        (
            Column("arm, the other, figure", "compared/*/what", "{}"), Column("mean", "compared/*/mean", "{:.4f}"),
            Column("of the other", "compared/*/of_other", "{:.4f}"), Column("ratio", "compared/*/ratio", "{:.4f}"),
            Column("difference", "compared/*/difference", "{:+.5f}"),
            Column("its standard error over seeds", "compared/*/error_over_seeds", "{:.5f}"),
            Column("over users", "compared/*/error_over_users", "{:.5f}"),
        ),
    ),
    "relay": kinds.relay_figures(
        "relay",
        ("the same, half of the users come again", "slo_rate_ratio_second_tier_50"),
        ("two servers, users fixed to one, over any", "slo_rate_ratio_affinity"),
        ("core-ms a request over inline, a tenth abandoned", "compute_ratio"),
    ),
    "relay-ways": kinds.relay_figures(
        "relay-ways",
        ("the same, half of the users come again", "slo_rate_ratio_returning_50"),
        ("the same, half brought back from disk", "slo_rate_ratio_second_tier_50"),
        ("two servers, users fixed to one, over any", "slo_rate_ratio_affinity"),
        ("clients at once within the budgets, over inline", "concurrency_ratio"),
        ("core-ms a request over inline, a tenth abandoned, mixture", "compute_ratio"),
        ("tokens computed, the same", "computed_tokens_ratio"),
        ("shared backbone, two calls, over two models", "slo_rate_ratio_shared_two_calls"),
    ),
    "relay-reach": kinds.relay_figures(
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
    "swap": (
        Figure("requests", "swap", "requests", "{}"),
        Figure("swaps among them", "swap", "swaps", "{}"),
        Figure("failed", "swap", "failed", "{}"),
        Figure("answers of mixed versions", "swap", "mixed_versions", "{}"),
    ),
    "soak": (
        Figure("requests", "soak", "requests", "{}"),
        Figure("errors", "soak", "errors", "{}"),
        Figure("bytes by which /dev/shm grew", "soak", "shm_growth_bytes", "{}"),
    ),
}  # fmt: skip
