"""The command `genrec`: finds the rooms and opens the top one."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from pathlib import Path

from genrec.cores import core_limit

ROOMS = Path(__file__).with_name("rooms")  # in a wheel; in a checkout the rooms lie beside this package
# Which extras have a library; what is not here is in all of them.
EXTRAS = {
    "torch": ("train", "export"), "faiss": ("train",), "duckdb": ("train",), "ray": ("ray",), "tokenizers": ("train",),
    "onnx": ("export", "build"), "onnxscript": ("export",), "openvino": ("serve", "build"), "pytriton": ("serve",),
    "matplotlib": ("perf",),
}  # fmt: skip
# Of several that have it, the one that a verb needs besides; `serve` for any other.
OF_VERBS = {
    "data": "train", "import": "train", "train": "train", "evaluate": "train", "export": "export", "build": "build",
    "catalogue": "build", "web": "web", "sweep": "perf", "bench": "perf",
}  # fmt: skip
THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"


def main() -> int:
    """Run the command line; a library that is not installed is told with the extra that brings it."""
    if ROOMS.is_dir():
        sys.path.insert(0, str(ROOMS))
    if limit := core_limit():  # before a library is imported that reads it then
        os.environ |= {name: str(limit) for name in THREADS if name not in os.environ}
    try:
        code: int = import_module("cli.main").main()
    except KeyboardInterrupt:  # while it is imported; what runs hears it by itself
        code = 128 + signal.SIGINT
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("genrec", "cli", ""):
            raise
        extra = extra_of(name, "".join(sys.argv[1:2]))
        print(
            f"genrec: {name} is not installed; it is in the extra {extra}: pip install '.[{extra}]'",
            file=sys.stderr,
        )
        return 2
    if code == 128 + signal.SIGINT:  # another, while the interpreter ends, would print where that was
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def extra_of(library: str, verb: str) -> str:
    """Of the extras that have the library that of the verb, or the first."""
    own = OF_VERBS.get(verb, "serve")
    having = EXTRAS.get(library, (own,))
    return own if own in having else having[0]


if __name__ == "__main__":
    sys.exit(main())
