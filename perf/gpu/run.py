"""Build, check and time everything that needs a GPU, in one call of a few minutes.

    python -m perf.gpu.run [--save] [--out FOLDER] [--commit HASH]     # on a machine with a GPU, nvcc and PyTorch
    python -m perf.gpu.run --parts requests,kernel --limit 300         # some parts, none begun after 300 seconds
    python -m perf.gpu.run --dry                   # CPU tensors and tiny shapes: the script itself, tried

Prints a short table and, last, one JSON object. With --out the figures so far are written to FOLDER/<date>.json after
every part: a call may be cut. A part for which there is no time, or which needs what this machine lacks, is skipped and
named. Every part that fails is told and leaves its figures out; the exit status is then 1. A result that was saved is
replaced as a whole: --save refuses --parts that leave out what it has, and a run that in the end lacks some is not
kept.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from genrec.errors import InputError
from perf.gpu.parts import PARTS, GpuResults, measure_all
from perf.gpu.table import table
from perf.kit import report

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


def parts_lost(path: Path, found: Collection[str]) -> list[str]:
    """Parts that the result at `path`, if there is one, has figures of, and that are not among those `found`."""
    if not path.is_file():
        return []
    saved = json.loads(path.read_text())
    return [part for part in PARTS if part in measured(saved) and part not in found]


def measured(results: dict[str, Any]) -> list[str]:
    """The parts that have figures in it: begun, and neither skipped nor failed."""
    return [part for part in results["seconds"] if part not in (*results["skipped"], *results["failed"])]


def main(argv: Sequence[str] | None = None) -> None:
    """Command line. Raises InputError."""
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
    saved = report.file_of(this.machine["name"], a.benchmark, a.label)
    if a.save and (lost := parts_lost(saved, asked)):
        limit = "these too, or a --label for a result of its own"
        raise InputError("parts", f"leave out {', '.join(lost)}, which {saved} has and would lose", limit)
    kept = GpuResults(a.out and a.out / f"{datetime.date.today().isoformat()}.json", asked, begun + a.limit)
    with tempfile.TemporaryDirectory() as folder:
        measure_all(kept, device, Path(folder), a.dry)
    print(table(kept.results))
    lost = parts_lost(saved, measured(kept.results)) if a.save else []
    if lost:
        a.save = False
        print(f"NOT KEPT: {saved} has {', '.join(lost)}, which this run lacks")
    this.publish(kept.results, repeats=1)
    sys.exit(bool(kept.results["failed"] or lost))


if __name__ == "__main__":
    main()
