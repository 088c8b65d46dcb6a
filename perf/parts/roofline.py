"""How fast this machine could be: the rates that other benchmarks hold their figures against.

    genrec bench machine

GEMM of 1,024 x 1,024 in NumPy and OpenVINO, in 1e9 operations a second (a multiply-add is two), and what is read and
copied of a buffer larger than any cache, in 1e9 bytes a second; the best of some repeats, about two seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from perf.kit import machine, report


def main(argv: Sequence[str] | None = None) -> None:
    """Print the rates and, last, one JSON object."""
    parser = report.arguments("machine", __doc__)
    parser.add_argument("--repeats", type=int, default=5)
    a = parser.parse_args(argv)
    run = report.begin(a)
    limits = asdict(machine.roofline(a.repeats))
    report.show({key: value and round(value, 1) for key, value in limits.items()})
    run.publish({"roofline": limits}, repeats=a.repeats)


if __name__ == "__main__":
    main()
