"""What OpenVINO's plugin does to the stack that signal handlers run on, and how nothing is left of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from genrec.engine.openvino_core import SignalStack, new_core

ROOT = Path(__file__).parents[3]
# A signal after two that ended in the order in which they began, as when Ctrl-C ends a command that has computed.
# With `ov.Core()` and `get_versions("CPU")` in the place of `new_core()` it is a segmentation fault.
ENDED = """
import signal
from genrec.engine.openvino_core import new_core

signal.signal(signal.SIGINT, signal.default_int_handler)
cores = [new_core() for _ in range(2)]
cores.pop(0)
cores.pop(0)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_core_leaves_the_stack_of_signals_as_it_was() -> None:
    def seen() -> tuple[int, int, int]:
        now = SignalStack.of_this_thread()
        return now.address or 0, now.flags, now.size

    before = seen()
    cores = [new_core() for _ in range(2)]
    assert seen() == before
    while cores:
        cores.pop(0)
        assert seen() == before


def test_a_signal_behind_two_of_them_is_heard() -> None:
    done = subprocess.run([sys.executable, "-c", ENDED], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
