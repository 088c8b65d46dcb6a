"""Tables that several results of one benchmark have alike."""

from __future__ import annotations

from perf.kit.table_forms import Column, Figure, Table

OVERLOAD = {
    file: Table(
        file, "{settings[artifact]}, deadline {settings[deadline_ms]} ms, capacity {capacity:.0f} answers/s", "shares",
        (
            Column("asked/s", "shares/*/offered_rate"), Column("answered in time/s", "shares/*/goodput"),
            Column("refused", "shares/*/shed", "{}"), Column("P50 ms", "shares/*/p50_ms"),
            Column("P99 ms", "shares/*/p99_ms"),
        ),
        "share of the capacity",
    )
    for file in ("overload", "overload-direct")
}  # fmt: skip
COME_AGAIN = tuple(
    Figure(what, file, f"cells/{cell}")
    for what, file, cell in (
        (
            "users who come again, {words[artifact]}, 1,023 tokens, beam width {settings[beam_width]}: requests/s with "
            "`user_id` over without",
            "returning", "1023 tokens, 1 at a time/ratio",
        ),
        (
            "the same by `{settings[ensemble]}`",
            "returning-draft", "1023 tokens, 1 at a time/ratio",
        ),
        (
            "users who come again, 990 tokens: times the requests/s of OpenVINO GenAI with its prefix cache",
            "returning_peers", "990 tokens, openvino-genai/over",
        ),
    )
)  # fmt: skip
RETURNING = {
    file: Table(
        file, "{settings[ensemble]}, {words[artifact]}, beam width {settings[beam_width]}", "cells",
        (
            Column("nobody named, requests/s", "cells/*/whole/rate"), Column("P50 ms", "cells/*/whole/p50_ms"),
            Column("named, requests/s", "cells/*/named/rate"), Column("P50 ms", "cells/*/named/p50_ms"),
            Column("times", "cells/*/ratio", "{:.1f}"),
        ),
        "first visit",
    )
    for file in ("returning", "returning-draft")
}  # fmt: skip
RETURNING_PEERS = Table(
    "returning_peers", "31 M parameters, beam width {settings[beam_width]}, one at a time", "cells",
    (
        Column("first visit, ms", "cells/*/first_ms"), Column("later ones, ms", "cells/*/later_ms"),
        Column("later ones, requests/s", "cells/*/rate"), Column("ours over it", "cells/*/over"),
    ),
    "first visit's prompt, system",
)  # fmt: skip
WINDOWS = Table(
    "window_quality", "users of longer histories than are read, beam width {settings[beam_width]}", "windows",
    (
        Column("users", "windows/*/users", "{}"), Column("HR@10", "windows/*/HR@10", "{:.4f}"),
        Column("NDCG@10", "windows/*/NDCG@10", "{:.4f}"),
        Column("NDCG@10 over newest", "windows/*/difference", "{:+.4f}"),
        Column("standard error", "windows/*/error", "{:.4f}"),
    ),
    "data, window",
)  # fmt: skip
COMPARED = (
    Column("arm, the other, figure", "compared/*/what", "{}"), Column("mean", "compared/*/mean", "{:.4f}"),
    Column("of the other", "compared/*/of_other", "{:.4f}"), Column("ratio", "compared/*/ratio", "{:.4f}"),
    Column("difference", "compared/*/difference", "{:+.5f}"),
    Column("its standard error over seeds", "compared/*/error_over_seeds", "{:.5f}"),
    Column("over users", "compared/*/error_over_users", "{:.5f}"),
)  # fmt: skip
FURTHER = Table(
    "further_quality",
    "{settings[artifact]}, seeds {settings[seeds]}, {asked[events]} events of {asked[users]} users; training of the "
    "files took {seconds[further]:.0f} s, anew {seconds[anew]:.0f} s", "compared", COMPARED,
)  # fmt: skip

GPU = {
    "gpu": Table(
        "gpu", "layers of Qwen3-1.7B, beam width 256, a million items, prompts of S tokens, B at once",
        "requests",
        (
            Column("ms", "requests/*/ms", "{:.1f}"), Column("ms, KV kept", "requests/*/kept_ms", "{:.1f}"),
            Column("of it prefill", "requests/*/parts_ms/prefill", "{:.1f}"),
            Column("decode", "requests/*/parts_ms/decode", "{:.1f}"),
            Column("beam search", "requests/*/parts_ms/selection", "{:.2f}"),
            Column("prefill's share of a product's rate", "requests/*/prefill_share_of/measured_gemm", "{:.0%}"),
        ),
        "S, B",
    ),
    "gpu-served": Table(
        "gpu", "the same through a tritonserver with target `cuda`", "served",
        (
            Column("ms", "served/*/ms", "{:.1f}"), Column("more than without", "served/*/added_ms", "{:.1f}"),
            Column("by", "served/*/by", "{}"),
        ),
        "S, B",
    ),
    "gpu-kernel": Table(
        "gpu", "attention of a decode step, 16 heads over 8 of KV, 128 each, bf16, ms", "kernel",
        (
            Column("ours", "kernel/*/ms", "{:.4f}"), Column("floor", "kernel/*/floor_ms", "{:.4f}"),
            Column("torch's, KV per beam", "kernel/*/baseline_ms", "{:.3f}"),
            Column("torch's flex attention", "kernel/*/flex_ms", "{:.3f}"),
        ),
        "beams, S, B",
    ),
    "gpu-rank": Table(
        "gpu", "ms of B rankings, 100 candidates of 15 tokens, users of S tokens, layers of Qwen3-1.7B", "rank",
        (
            Column("all KV on the device", "rank/*/there", "{:.1f}"), Column("of it the pass", "rank/*/pass", "{:.1f}"),
            Column("floor of the pass", "rank/*/floor", "{:.2f}"),
            Column("users' KV in the pool", "rank/*/user_on_host", "{:.1f}"),
            Column("all KV in the pool", "rank/*/nothing_on_device", "{:.1f}"),
            Column("all computed anew", "rank/*/computed", "{:.1f}"),
            Column("all KV on the device, torch's kernels", "rank/*/by_torch", "{:.1f}"),
        ),
        "S, B",
    ),
    "gpu-rank-served": Table(
        "gpu", "users of 1,584 tokens, layers of Qwen3-0.6B; alone {rank_alone[there]:.1f} ms", "rank_served",
        (
            Column("rankings/s", "rank_served/*/rate", "{:.0f}"), Column("P50 ms", "rank_served/*/p50_ms", "{:.1f}"),
            Column("P99 ms", "rank_served/*/p99_ms", "{:.1f}"),
        ),
        "at a time",
    ),
    "gpu-cascade": Table(
        "gpu", "users of 1,584 tokens that are new, 100 candidates, layers of Qwen3-0.6B, one request at a time",
        "cascade",
        (
            Column("P50 ms", "cascade/*/p50_ms", "{:.1f}"),
            Column("tokens of the user reused", "cascade/*/user_reused", "{:.0f}"),
        ),
        "asked",
    ),
    "gpu-hstu": Table(
        "gpu", "ms of an HSTU ranker in float32, 100 candidates; default: 200 events, hidden size 64, 3 layers; large: "
        "2,000 events, 512, 8 layers", "hstu",
        (
            Column("a ranking, the user's KV in host memory", "hstu/*/rank", "{:.2f}"),
            Column("of it the pass", "hstu/*/rank_pass", "{:.3f}"),
            Column("floor of the pass", "hstu/*/rank_floor", "{:.3f}"),
            Column("a user's whole pass", "hstu/*/user", "{:.2f}"),
            Column("of it the host's marks", "hstu/*/marks", "{:.2f}"),
            Column("of it the pass", "hstu/*/user_pass", "{:.3f}"),
            Column("floor of the pass", "hstu/*/user_floor", "{:.3f}"),
        ),
        "size",
    ),
    "gpu-train": Table(
        "gpu", "an update of the generator, histories of 50 items, or of an HSTU model, of 200", "train",
        (
            Column("events", "train/*/events", "{:,.0f}"), Column("ms", "train/*/ms", "{:.1f}"),
            Column("events/s", "train/*/events_per_second", "{:,.0f}"),
            Column("of a bf16 product's rate", "train/*/of_measured_gemm", "{:.2%}"),
        ),
        "model",
    ),
}  # fmt: skip
