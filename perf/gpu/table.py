"""What the GPU benchmark found, for people."""

from __future__ import annotations

from typing import Any

from perf.gpu import requests


def table(results: dict[str, Any]) -> str:
    """For people: kernel, then requests, then the rest."""
    lines = _kernels(results["kernel"]) + _requests(results.get("requests", {}))
    for name, row in results.get("rank", {}).items():
        columns = (
            "there",
            "pass",
            "floor",
            "user_on_host",
            "nothing_on_device",
            "user_computed_and_kept",
            "computed",
            "by_torch",
        )
        lines.append(f"ranking {name:12}" + "".join(f" {column} {row[column]:.3f}" for column in columns))
    for name, row in results.get("hstu", {}).items():
        passes = (
            f"{what} {row[what]:.3f} ms, its pass {row[f'{what}_pass']:.3f}, floor {row[f'{what}_floor']:.3f}"
            for what in ("rank", "user")
        )
        lines.append(f"HSTU, {name}: {'; '.join(passes)}; marks {row['marks']:.3f} ms of the user's")
    for name, row in results.get("train", {}).items():
        of = f"{row['events_per_second']:,.0f} events/s, {row['ms']:.2f} ms a step of {row['events']} events"
        lines.append(f"training, {name}: {of}, {row['of_measured_gemm']:.1%} of the measured GEMM in bf16")
    for name, row in results.get("served", {}).items():
        lines.append(
            f"{name:16} {row['ms']:8.2f} through Triton, by {row['by']}: it adds {row['added_ms']:.2f}"
        )
    for name, row in results.get("rank_served", {}).items():
        figures = " ".join(f"{key} {row[key]:.2f}" for key in ("rate", "p50_ms", "p99_ms"))
        lines.append(f"rankings through Triton, {name}: {figures}")
    for name, row in results.get("cascade", {}).items():
        lines.append(f"{name}: P50 {row['p50_ms']:.2f} ms, {row['user_reused']} tokens of the user reused")
    for said, parts in (("skipped", results["skipped"]), ("FAILED", results["failed"])):
        lines += [f"{said} {part}: {why}" for part, why in parts.items()]
    lines += [f"NOT SHOWN {what}" for what, right in results["checked"].items() if not right]
    return "\n".join(lines)


def _kernels(rows: dict[str, Any]) -> list[str]:
    lines = [
        f"{'kernel (bf16)':16} {'which':>6} {'ms':>8} {'floor':>8} {'x floor':>8} {'per beam':>9} {'faster':>7}"
    ]
    for name, row in rows.items():
        ms, floor = row["ms"], row["floor_ms"]
        base = row["baseline_ms"] if isinstance(row["baseline_ms"], float) else float("nan")
        lines.append(
            f"{name:16} {row['kernel']:>6} {ms:8.4f} {floor:8.4f} {ms / floor:8.2f} {base:9.3f} {base / ms:6.1f}x"
        )
    return lines


def _requests(rows: dict[str, Any]) -> list[str]:
    names = ("prefill", "decode", "selection", "gaps")
    lines = [
        f"{'request':16} {'ms':>8} {'goal':>6} {'NVIDIA':>7}"
        + "".join(f"{n:>10}" for n in names)
        + "  prefill of measured GEMM, of data sheet"
    ]
    for name, row in rows.items():
        goal, theirs = requests.GOALS_MS.get(name, 0), requests.THEIRS_MS.get(name, 0)
        parts = "".join(f"{row['parts_ms'][n]:10.2f}" for n in names)
        gemm, sheet = row["prefill_share_of"].values()
        of = f"{gemm:6.0%} {'-' if sheet is None else f'{sheet:.0%}':>6}"
        lines.append(f"{name:16} {row['ms']:8.2f} {goal:6.1f} {theirs:7.1f}{parts}{of}")
    return lines
