"""Build, check and time everything that needs a GPU, in one call of a few minutes.

    python -m perf.gpu.run [--save] [--out FOLDER] [--commit HASH]     # on a machine with a GPU, nvcc and PyTorch
    python -m perf.gpu.run --dry                   # CPU tensors and tiny shapes: the script itself, tried

Prints a short table and, last, one JSON object. With --out the figures so far are written to FOLDER/<date>.json after
every part: a call may be cut. Every part that fails is told and leaves its figures out; the exit status is then 1.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from build.plugin.compile import compile_for_gpu, compile_for_host
from perf.gpu import attention, requests
from perf.gpu.timing import bytes_per_second, operations_per_second
from perf.kit import report


def about(device: torch.device, commit: str) -> dict[str, Any]:
    """What the figures are measured on, beside the facts of the machine around it."""
    smi = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, _, driver = _said(smi).partition(", ") if device.type == "cuda" else ("CPU dry run", "", "")
    return {
        "name": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"),
        "device": name,
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        **({"commit": commit} if commit else {}),
    }


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class GpuResults:
    """Results so far; parts that fail are kept as such. A file, if any, is rewritten after every part."""

    def __init__(self, path: Path | None = None) -> None:
        self.results: dict[str, Any] = {"ms": {}, "kernel": {}, "failed": {}}
        self.path = path
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)

    def part(self, name: str, work: Callable[[], None]) -> bool:
        """Run `work`; whether it went well."""
        begun = time.monotonic()
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            self.results["failed"][name] = f"{type(error).__name__}: {error}"[:500]
        self.results.setdefault("seconds", {})[name] = round(time.monotonic() - begun, 1)
        if self.path:
            self.path.write_text(json.dumps(self.results, indent=1) + "\n")
        return name not in self.results["failed"]


def measure_all(kept: GpuResults, device: torch.device, folder: Path, dry: bool) -> None:
    """All parts, in the order of what they need of each other."""
    library, results = folder / "xattention.so", kept.results
    rates: list[float] = []

    def build() -> None:
        if dry:
            compile_for_host(library, extra=["-DXATTENTION_ONLY=16"])
        else:
            capability = torch.cuda.get_device_capability()
            lines = compile_for_gpu(library, (10 * capability[0] + capability[1],))
            results["compiler"] = [
                line for line in lines.splitlines() if "registers" in line or "spill" in line
            ]

    def ceilings() -> None:
        rates[:] = [bytes_per_second(device), operations_per_second(device)]
        results["ceilings"] = {"bytes_per_second": rates[0], "operations_per_second": rates[1]}

    def check_kernel() -> None:
        results["worst_error_over_tolerance"] = attention.check(
            library, device, attention.DRY if dry else attention.CHECKS
        )

    def sanitize() -> None:
        results["sanitizer"] = {"dry": "not run"} if dry else attention.sanitize(library)

    def time_kernel() -> None:
        for case in attention.DRY if dry else attention.TIMED:
            results["kernel"][case.name] = attention.measure(library, device, case, (rates[0], rates[1]))

    def whole_requests() -> None:
        setting = requests.DRY if dry else requests.FULL
        generator = requests.make_generator(setting, library, device)
        results["share_of_beams_alive"] = requests.check(generator, setting)
        results["requests"] = {}
        for span, batch in setting.points:
            found = requests.measure(generator, setting, span, batch, rates[1])
            results["requests"][f"s{span}_b{batch}"] = found
            results["ms"][f"s{span}_b{batch}"] = found["ms"]

    def through_triton() -> None:
        from perf.gpu import through_triton  # needs what serving needs, which the rest does not

        setting = requests.DRY if dry else requests.FULL
        results["served"] = through_triton.measure(setting, results["ms"], folder / "served", device)

    if not kept.part("build", build) or not kept.part("ceilings", ceilings):
        return
    if kept.part("check kernel", check_kernel):
        kept.part("whole requests", whole_requests)
        kept.part("time kernel", time_kernel)
        kept.part("sanitize", sanitize)
        torch.cuda.empty_cache()  # the server is another process, with weights of its own
        kept.part("through triton", through_triton)


def table(results: dict[str, Any]) -> str:
    """For people: kernel, then requests."""
    lines = [f"{'kernel (bf16)':16} {'ms':>8} {'floor':>8} {'x floor':>8} {'per beam':>9} {'faster':>7}"]
    for name, row in results["kernel"].items():
        ms, floor = row["ms"], row["floor_ms"]
        base = row["baseline_ms"] if isinstance(row["baseline_ms"], float) else float("nan")
        lines.append(f"{name:16} {ms:8.4f} {floor:8.4f} {ms / floor:8.2f} {base:9.3f} {base / ms:6.1f}x")
    names = ("prefill", "decode", "selection", "gaps")
    lines.append(
        f"{'request':16} {'ms':>8} {'goal':>6} {'NVIDIA':>7}" + "".join(f"{n:>10}" for n in names) + "   MFU"
    )
    for name, row in results.get("requests", {}).items():
        goal, theirs = requests.GOALS_MS.get(name, 0), requests.THEIRS_MS.get(name, 0)
        parts = "".join(f"{row['parts_ms'][n]:10.2f}" for n in names)
        share = row["prefill_utilisation"]
        lines.append(f"{name:16} {row['ms']:8.2f} {goal:6.1f} {theirs:7.1f}{parts} {share:5.0%}")
    for name, row in results.get("served", {}).items():
        lines.append(
            f"{name:16} {row['ms']:8.2f} through Triton, by {row['by']}: it adds {row['added_ms']:.2f}"
        )
    return "\n".join([*lines, *(f"FAILED {part}: {why}" for part, why in results["failed"].items())])


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = report.arguments("gpu", __doc__)
    parser.add_argument(
        "--dry", action="store_true", help="CPU tensors, tiny shapes; the figures mean nothing"
    )
    parser.add_argument("--out", type=Path, help="folder of the figures so far")
    parser.add_argument("--commit", default="", help="what is measured, where no git is")
    a = parser.parse_args(argv)
    if not a.dry and not torch.cuda.is_available():
        sys.exit("no GPU; --dry tries the script without one")
    if a.dry and a.save:
        sys.exit("a dry run's figures mean nothing: they are not saved")
    device = torch.device("cpu" if a.dry else "cuda")
    torch.manual_seed(0)
    this = report.begin(a, about(device, a.commit))
    kept = GpuResults(a.out and a.out / f"{datetime.date.today().isoformat()}.json")
    with tempfile.TemporaryDirectory() as folder:
        measure_all(kept, device, Path(folder), a.dry)
    print(table(kept.results))
    this.publish(kept.results, repeats=1)
    sys.exit(bool(kept.results["failed"]))


if __name__ == "__main__":
    main()
