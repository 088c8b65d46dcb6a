"""Build, check and time everything that needs a GPU, in one call of a few minutes.

    python -m perf.gpu.run [--save] [--out FOLDER] [--commit HASH]     # on a machine with a GPU, nvcc and PyTorch
    python -m perf.gpu.run --parts requests,kernel --limit 300         # some parts, none begun after 300 seconds
    python -m perf.gpu.run --dry                   # CPU tensors and tiny shapes: the script itself, tried

Prints a short table and, last, one JSON object. With --out the figures so far are written to FOLDER/<date>.json after
every part: a call may be cut. A part for which there is no time, or which needs what this machine lacks, is skipped and
named. Every part that fails is told and leaves its figures out; the exit status is then 1.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from build.plugin.compile import architecture_of, compile_for_gpu, compile_for_host
from genrec.engine.cuda.fused import FusedOperations
from genrec.engine.cuda.kernel import XAttentionKernel
from perf.gpu import attention, fused, hstu, rank, requests
from perf.gpu.table import table
from perf.gpu.timing import Missing, bytes_per_second, data_sheet_peak, operations_per_second
from perf.kit import report

# Beside the build and the checks of the kernels, which come first
PARTS = ("train", "requests", "rank", "hstu", "kernel", "sanitizer", "triton", "rank_triton")
# That a package of ours lacks is a failure
OWN = ("build", "clients", "deploy", "ensembles", "genrec", "perf", "training")
LIMIT_S = 480.0


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
    """Results so far; parts that fail are kept as such. A file, if any, is rewritten after every part.

    `asked` are the parts to run, and `end` is on the monotonic clock: then no further part, or case of one, begins.
    """

    def __init__(
        self, path: Path | None = None, asked: Collection[str] = PARTS, end: float = math.inf
    ) -> None:
        self.results: dict[str, Any] = {"ms": {}, "kernel": {}, "checked": {}, "failed": {}, "skipped": {}}
        self.path, self._asked, self._end = path, asked, end
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)

    def part(self, name: str, work: Callable[[], None]) -> bool:
        """Run `work`, if it was asked for, there is time and it finds what it needs; whether nothing failed."""
        if name in PARTS and name not in self._asked:
            return True
        begun = time.monotonic()
        try:
            self.in_time()
            work()
        except Exception as error:
            if _lacking(error):
                self.results["skipped"][name] = str(error)
            else:
                traceback.print_exc()
                self.results["failed"][name] = f"{type(error).__name__}: {error}"[:500]
        self.results.setdefault("seconds", {})[name] = round(time.monotonic() - begun, 1)
        if self.path:
            self.path.write_text(json.dumps(self.results, indent=1) + "\n")
        return name not in self.results["failed"]

    def in_time(self) -> None:
        """Raises Missing when there is no time for more."""
        if time.monotonic() > self._end:
            raise Missing("no time was left")


def _lacking(error: Exception) -> bool:
    """Whether it says that this machine lacks something: a package that is not ours among them."""
    if isinstance(error, ModuleNotFoundError):
        return str(error.name).split(".")[0] not in OWN
    return isinstance(error, Missing)


def measure_all(kept: GpuResults, device: torch.device, folder: Path, dry: bool) -> None:
    """All parts, in the order of what they need of each other."""
    library, results = folder / "xattention.so", kept.results
    rates: list[float] = []
    shares: dict[str, float | None] = {}
    cache = 1 << 14 if dry else torch.cuda.get_device_properties(device).L2_cache_size

    def build() -> None:
        if dry:
            compile_for_host(library, extra=["-DXATTENTION_ONLY=16"])
        else:
            lines = compile_for_gpu(library, [architecture_of(*torch.cuda.get_device_capability())])
            results["compiler"] = [
                line for line in lines.splitlines() if re.search("registers|spill|serialized", line)
            ]

    def ceilings() -> None:
        rates[:] = [bytes_per_second(device), operations_per_second(device)]
        peak = data_sheet_peak(torch.cuda.get_device_name()) if device.type == "cuda" else None
        shares.update({"measured_gemm": rates[1], "data_sheet": peak})
        results["ceilings"] = {
            "bytes_per_second": rates[0], "operations_per_second": rates[1], "data_sheet_operations_per_second": peak
        }  # fmt: skip

    def check_kernel() -> None:
        results["worst_error_over_tolerance"] = attention.check(
            library, device, attention.DRY_CHECKS if dry else attention.CHECKS
        )
        results["checked"]["kernel against the float64 oracle"] = True

    def check_fused() -> None:
        results["fused_worst_error_over_tolerance"] = fused.check(library, device, small=dry)
        results["checked"]["fused kernels against torch"] = True

    def sanitize() -> None:
        if dry:
            raise Missing("no GPU")
        results["sanitizer"] = attention.sanitize(library)
        results["checked"] |= {tool: "SUMMARY: 0" in said for tool, said in results["sanitizer"].items()}
        found = [
            f"{tool}: {said}" for tool, said in results["sanitizer"].items() if said.startswith("status")
        ]
        assert not found, "; ".join(found)

    def time_kernel() -> None:
        for case in attention.DRY if dry else attention.TIMED:
            kept.in_time()
            row = attention.measure(library, device, case, (rates[0], rates[1]), cache)
            results["kernel"][case.name] = row
            results["checked"][f"kernel as timed, {case.name}"] = True

    def whole_requests() -> None:
        setting = requests.DRY if dry else requests.FULL
        generator = requests.make_generator(
            setting, XAttentionKernel(library, device), device, FusedOperations(library, device)
        )
        results["errors"] = requests.check_reference(generator, setting)
        results["checked"]["logits and answers against the generator in float32"] = True
        results["share_of_beams_alive"] = requests.check(generator, setting)
        results["checked"]["answers are items of their catalogue version, distinct, the same twice"] = True
        results["requests"] = {}
        for span, batch in setting.points:
            kept.in_time()
            found = requests.measure(generator, setting, span, batch, shares)
            results["requests"][f"s{span}_b{batch}"] = found
            results["ms"][f"s{span}_b{batch}"] = found["ms"]

    def rankings() -> None:
        results["rank_kernel_worst_error_over_tolerance"] = rank.check_kernel(
            library, device, attention.DRY if dry else rank.CHECKS
        )
        setting = rank.DRY if dry else rank.FULL
        asked = rank.Rankings(setting, library, device)
        results["rank_error"] = rank.check_states(asked, setting.points[0][0])
        results["checked"]["states of rankings against the ranker in float32"] = True
        results["rank"] = {}
        for length, batch in setting.points:
            kept.in_time()
            results["rank"][f"s{length}_b{batch}"] = rank.measure(asked, length, batch, (rates[0], rates[1]))

    def hstu_rankings() -> None:
        setting = hstu.DRY if dry else hstu.FULL
        results["hstu_errors"] = hstu.check(setting, device)
        results["checked"]["HSTU rankers against the CPU"] = True
        plain = results["ceilings"]["float32_operations_per_second"] = operations_per_second(
            device, torch.float32
        )
        results["hstu"] = hstu.measure(setting, device, (rates[0], plain))

    def trainings() -> None:
        # They need what reading histories needs, which the rest does not.
        from perf.gpu import train, train_check, trainers

        setting = train.DRY if dry else train.FULL
        results["train_errors"] = train_check.check(setting, device, folder)
        results["checked"]["training against the CPU, and checkpoints on both"] = True
        results["train"] = train.measure(setting, device, rates[1])
        results["trainers_errors"] = trainers.check(setting, device, folder)
        results["checked"]["training of ranker, draft head and HSTU models against the CPU"] = True
        shapes = trainers.DRY if dry else trainers.FULL
        results["train"] |= trainers.measure(setting, shapes, device, rates[1])

    def through_triton() -> None:
        from perf.gpu import through_triton  # needs what serving needs, which the rest does not

        if not results["ms"]:
            raise Missing("the part requests, whose times it is compared with, has none")
        through_triton.find_tools()
        setting = requests.DRY if dry else requests.FULL
        results["served"] = through_triton.measure(setting, results["ms"], folder / "served", device)

    def rankings_through_triton() -> None:
        from perf.gpu import rank_served, through_triton  # as above

        through_triton.find_tools(through_triton.find_server)
        setting = rank.DRY if dry else rank.SERVED
        asked, (length, batch) = rank.Rankings(setting, library, device), setting.points[0]
        results["rank_alone"] = rank.measure(asked, length, batch, (rates[0], rates[1]))
        del asked
        torch.cuda.empty_cache()
        results.update(rank_served.measure(setting, folder / "ranked", device, 1.0 if dry else 5.0))

    if not kept.part("build", build) or not kept.part("ceilings", ceilings):
        return
    kept.part("train", trainings)
    torch.cuda.empty_cache()
    if kept.part("check", check_kernel):
        if kept.part("fused", check_fused):
            kept.part("requests", whole_requests)
            torch.cuda.empty_cache()
            kept.part("rank", rankings)
            torch.cuda.empty_cache()
            kept.part("hstu", hstu_rankings)
            torch.cuda.empty_cache()
        kept.part("kernel", time_kernel)
        torch.cuda.empty_cache()  # the server is another process, with weights of its own
        kept.part("triton", through_triton)
        kept.part("rank_triton", rankings_through_triton)
        kept.part("sanitizer", sanitize)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = report.arguments("gpu", __doc__)
    parser.add_argument(
        "--dry", action="store_true", help="CPU tensors, tiny shapes; the figures mean nothing"
    )
    parser.add_argument("--out", type=Path, help="folder of the figures so far")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of these, with commas between")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which no part begins")
    parser.add_argument("--commit", default="", help="what is measured, where no git is")
    a, begun = parser.parse_args(argv), time.monotonic()
    asked = a.parts.split(",")
    if unknown := [part for part in asked if part not in PARTS]:
        parser.error(f"--parts names {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not a.dry and not torch.cuda.is_available():
        sys.exit("no GPU; --dry tries the script without one")
    if a.dry and a.save:
        sys.exit("a dry run's figures mean nothing: they are not saved")
    device = torch.device("cpu" if a.dry else "cuda")
    torch.manual_seed(0)
    this = report.begin(a, about(device, a.commit))
    kept = GpuResults(a.out and a.out / f"{datetime.date.today().isoformat()}.json", asked, begun + a.limit)
    with tempfile.TemporaryDirectory() as folder:
        measure_all(kept, device, Path(folder), a.dry)
    print(table(kept.results))
    this.publish(kept.results, repeats=1)
    sys.exit(bool(kept.results["failed"]))


if __name__ == "__main__":
    main()
