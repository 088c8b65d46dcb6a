"""The parts of `perf.gpu.run`, and what becomes of them."""

from __future__ import annotations

import json
import math
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch

from build.plugin.compile import architecture_of, compile_for_gpu, compile_for_host
from genrec.engine.cuda.fused import FusedOperations
from genrec.engine.cuda.kernel import XAttentionKernel
from perf.gpu import attention, fused, hstu, rank, requests
from perf.gpu.timing import Missing, bytes_per_second, data_sheet_peak, operations_per_second

# Beside the build and the checks of the kernels, which come first
PARTS = ("train", "requests", "rank", "hstu", "kernel", "sanitizer", "triton", "rank_triton")
# That a package of ours lacks is a failure
OWN = ("build", "clients", "deploy", "ensembles", "genrec", "perf", "training")


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
        seconds = self.results.setdefault("seconds", {})[name] = round(time.monotonic() - begun, 1)
        print(f"{name}: {seconds} s", file=sys.stderr, flush=True)
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


class Parts:
    """Each writes to `kept.results` what it finds; raises Missing for what this machine lacks."""

    def __init__(self, kept: GpuResults, device: torch.device, folder: Path, dry: bool) -> None:
        self.kept, self.results, self.device, self.folder, self.dry = kept, kept.results, device, folder, dry
        self.library = folder / "xattention.so"
        self.cache = 1 << 14 if dry else torch.cuda.get_device_properties(device).L2_cache_size  # bytes
        self.rates = math.nan, math.nan  # bytes and operations per second
        self.shares: dict[str, float | None] = {}  # operations per second, of which a part's are a share

    def build(self) -> None:
        """The library of kernels."""
        if self.dry:
            compile_for_host(self.library, extra=["-DXATTENTION_ONLY=16"])
        else:
            lines = compile_for_gpu(self.library, [architecture_of(*torch.cuda.get_device_capability())])
            self.results["compiler"] = [
                line for line in lines.splitlines() if re.search("registers|spill|serialized", line)
            ]

    def ceilings(self) -> None:
        """What the device can do at most."""
        self.rates = bytes_per_second(self.device), operations_per_second(self.device)
        peak = data_sheet_peak(torch.cuda.get_device_name()) if self.device.type == "cuda" else None
        self.shares = {"measured_gemm": self.rates[1], "data_sheet": peak}
        self.results["ceilings"] = {
            "bytes_per_second": self.rates[0],
            "operations_per_second": self.rates[1],
            "data_sheet_operations_per_second": peak,
        }

    def check_kernel(self) -> None:
        """The attention kernel against its oracle."""
        self.results["worst_error_over_tolerance"] = attention.check(
            self.library, self.device, attention.DRY_CHECKS if self.dry else attention.CHECKS
        )
        self.results["checked"]["kernel against the float64 oracle"] = True

    def check_fused(self) -> None:
        """The fused kernels against torch."""
        self.results["fused_worst_error_over_tolerance"] = fused.check(
            self.library, self.device, small=self.dry
        )
        self.results["checked"]["fused kernels against torch"] = True

    def sanitize(self) -> None:
        """What compute-sanitizer finds. Raises AssertionError where it finds something."""
        if self.dry:
            raise Missing("no GPU")
        self.results["sanitizer"] = attention.sanitize(self.library)
        self.results["checked"] |= {
            tool: "SUMMARY: 0" in said for tool, said in self.results["sanitizer"].items()
        }
        found = [
            f"{tool}: {said}" for tool, said in self.results["sanitizer"].items() if said.startswith("status")
        ]
        assert not found, "; ".join(found)

    def time_kernel(self) -> None:
        """The attention kernel beside others."""
        for case in attention.DRY if self.dry else attention.TIMED:
            self.kept.in_time()
            row = attention.measure(self.library, self.device, case, self.rates, self.cache)
            self.results["kernel"][case.name] = row
            self.results["checked"][f"kernel as timed, {case.name}"] = True

    def whole_requests(self) -> None:
        """The generator, checked and timed."""
        setting = requests.DRY if self.dry else requests.FULL
        generator = requests.make_generator(
            setting,
            XAttentionKernel(self.library, self.device),
            self.device,
            FusedOperations(self.library, self.device),
        )
        self.results["errors"] = requests.check_reference(generator, setting)
        self.results["checked"]["logits and answers against the generator in float32"] = True
        self.results["share_of_beams_alive"] = requests.check(generator, setting)
        self.results["checked"]["answers are items of their catalogue version, distinct, the same twice"] = (
            True
        )
        self.results["requests"] = {}
        for span, batch in setting.points:
            self.kept.in_time()
            found = requests.measure(generator, setting, span, batch, self.shares)
            self.results["requests"][f"s{span}_b{batch}"] = found
            self.results["ms"][f"s{span}_b{batch}"] = found["ms"]

    def rankings(self) -> None:
        """Rankings in order `split`, checked and timed."""
        self.results["rank_kernel_worst_error_over_tolerance"] = rank.check_kernel(
            self.library, self.device, attention.DRY if self.dry else rank.CHECKS
        )
        setting = rank.DRY if self.dry else rank.FULL
        asked = rank.Rankings(setting, self.library, self.device)
        self.results["rank_error"] = rank.check_states(asked, setting.points[0][0])
        self.results["checked"]["states of rankings against the ranker in float32"] = True
        self.results["rank"] = {}
        for length, batch in setting.points:
            self.kept.in_time()
            self.results["rank"][f"s{length}_b{batch}"] = rank.measure(asked, length, batch, self.rates)

    def hstu_rankings(self) -> None:
        """HSTU rankers, checked and timed."""
        setting = hstu.DRY if self.dry else hstu.FULL
        self.results["hstu_errors"] = hstu.check(setting, self.device)
        self.results["checked"]["HSTU rankers against the CPU"] = True
        plain = self.results["ceilings"]["float32_operations_per_second"] = operations_per_second(
            self.device, torch.float32
        )
        self.results["hstu"] = hstu.measure(setting, self.device, (self.rates[0], plain))

    def trainings(self) -> None:
        """Trainings of all models, checked and timed."""
        # They need what reading histories needs, which the rest does not.
        from perf.gpu import train, train_check, trainers

        setting = train.DRY if self.dry else train.FULL
        self.results["train_errors"] = train_check.check(setting, self.device, self.folder)
        self.results["checked"]["training against the CPU, and checkpoints on both"] = True
        self.results["train"] = train.measure(setting, self.device, self.rates[1])
        self.results["trainers_errors"] = trainers.check(setting, self.device, self.folder)
        self.results["checked"]["training of ranker, draft head and HSTU models against the CPU"] = True
        shapes = trainers.DRY if self.dry else trainers.FULL
        self.results["train"] |= trainers.measure(setting, shapes, self.device, self.rates[1])

    def through_triton(self) -> None:
        """The requests of `whole_requests` through a server."""
        from perf.gpu import through_triton  # needs what serving needs, which the rest does not

        if not self.results["ms"]:
            raise Missing("the part requests, whose times it is compared with, has none")
        through_triton.find_tools()
        setting = requests.DRY if self.dry else requests.FULL
        self.results["served"] = through_triton.measure(
            setting, self.results["ms"], self.folder / "served", self.device
        )

    def rankings_through_triton(self) -> None:
        """Rankings through a server."""
        from perf.gpu import rank_served, through_triton  # as above

        through_triton.find_tools(through_triton.find_server)
        setting = rank.DRY if self.dry else rank.SERVED
        asked, (length, batch) = rank.Rankings(setting, self.library, self.device), setting.points[0]
        self.results["rank_alone"] = rank.measure(asked, length, batch, self.rates)
        del asked
        torch.cuda.empty_cache()
        self.results.update(
            rank_served.measure(setting, self.folder / "ranked", self.device, 1.0 if self.dry else 5.0)
        )


# Name, work, and the part that must not have failed before
IN_ORDER: tuple[tuple[str, Callable[[Parts], None], str], ...] = (
    ("build", Parts.build, ""),
    ("ceilings", Parts.ceilings, "build"),
    ("train", Parts.trainings, "ceilings"),
    ("check", Parts.check_kernel, "ceilings"),
    ("fused", Parts.check_fused, "check"),
    ("requests", Parts.whole_requests, "fused"),
    ("rank", Parts.rankings, "fused"),
    ("hstu", Parts.hstu_rankings, "fused"),
    ("kernel", Parts.time_kernel, "check"),
    ("triton", Parts.through_triton, "check"),
    ("rank_triton", Parts.rankings_through_triton, "check"),
    ("sanitizer", Parts.sanitize, "check"),
)


def measure_all(kept: GpuResults, device: torch.device, folder: Path, dry: bool) -> None:
    """All parts, but those that need one that failed."""
    parts, sound = Parts(kept, device, folder, dry), {""}
    for name, work, needed in IN_ORDER:
        if needed in sound and kept.part(name, partial(work, parts)):
            sound.add(name)
        torch.cuda.empty_cache()  # a server is another process, with weights of its own
