"""The tables of README and docs: which saved results, which of their fields."""

from __future__ import annotations

from perf.kit import table_kinds as kinds
from perf.kit.table_forms import Column, Figure, Grid, Table
from perf.kit.tables_of_rankings import RANKINGS

PEERS = "requests a second at the better of 1 and 4 at a time, {settings[cores]} cores"


TABLES: dict[str, tuple[Figure, ...] | Table | Grid] = {
    "headline": (
        Figure("times the requests/s of {words[peers]}, {words[models]}, beam width 128", "peers", "ratio_bw128"),
        Figure("the same, beam width 512", "peers", "ratio_bw512"),
        *kinds.COME_AGAIN,
        Figure("100 candidates ranked, KV of user and items there: times as fast as transformers with the user's KV",
               "rank_peers", "over/transformers"),
        Figure("the user's KV alone there for both: times as fast as transformers", "rank_peers",
               "over_user_there/transformers"),
        Figure("requests/s with P99 within {settings[slo_p99_ms]:g} ms, {settings[artifact]}, by perf_analyzer",
               "sweep", "highest_rate", "{:.0f}"),
        Figure("of {settings[cross_check_s]:g} s of our own arrivals at that rate, answered within "
               "{settings[slo_p99_ms]:g} ms of being due", "sweep", "cross_check/within_slo", "{:.0%}"),
        Figure("HR@10 on {settings[artifact]}, {words[seen]}", "quality", "model/HR@10", "{:.4f}"),
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
        "stages", "{settings[artifact]}, one request at a time, ms; of the parts means", "p50_ms",
        (
            Column("P50", "p50_ms/*"), Column("P99", "p99_ms/*"),
            Column("prefill", "stages_ms/*/prefill"), Column("decode", "stages_ms/*/decode"),
            Column("beam search", "stages_ms/*/beam_search"), Column("Triton's hops and the client", "hops_ms/*"),
        ),
        "beam width",
    ),
    **RANKINGS, **kinds.OVERLOAD, **kinds.GPU,
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
        Figure("HR@10 on {settings[artifact]}, {words[seen]}", "quality", "model/HR@10", "{:.4f}"),
        Figure("NDCG@10", "quality", "model/NDCG@10", "{:.4f}"),
        Figure("HR@10 of transition counts", "quality", "transition counts/HR@10", "{:.4f}"),
        Figure("NDCG@10 of transition counts", "quality", "transition counts/NDCG@10", "{:.4f}"),
    ),
    **kinds.RETURNING, "returning-peers": kinds.RETURNING_PEERS, "window-quality": kinds.WINDOWS,
    "sweep": (
        Figure("requests/s with P99 within {settings[slo_p99_ms]:g} ms, {settings[artifact]}", "sweep", "highest_rate",
               "{:.0f}"),
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
        Figure("a search step over {settings[items]:,} items, of a decode pass", "constraint", "step_share_1m",
               "{:.1%}"),
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
        Figure("tokens of the fullest rank over the mean, 64 ranks, computed", "training", "token_imbalance", "{:.3f}"),
        Figure("HSTU layer, plain formula over ours, time at least", "hstu_attention", "time_ratio_worst", "{:.2f}"),
        Figure("the same, peak memory at least", "hstu_attention", "memory_ratio_worst", "{:.2f}"),
    ),
    "placement": Table(
        "placement", "requests/s of one of {settings[nodes]} nodes with order split, computed, not measured",
        "policies/split",
        (
            Column("all items on every node", "policies/split/*/replicate/rate"),
            Column("each on one", "policies/split/*/hash/rate"),
            Column("hot ones on every node", "policies/split/*/hrcs/rate"),
            Column("the same, the bound as it is printed", "policies/split/*/hrcs as printed/rate"),
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
        kinds.COMPARED,
    ),
    "further-quality": kinds.FURTHER,
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
