"""Ctrl-C in the first second of a command, while it is imported."""

from __future__ import annotations

import signal
import subprocess
import sys

# Who starts the tests in the background has them ignore SIGINT, and children inherit that.
COMMAND = """
import signal, sys
from genrec.__main__ import main
class Interrupted:
    def find_spec(self, name, *_):
        if name == "cli.run":
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupted())
sys.exit(main())
"""


def test_ctrl_c_while_a_command_is_imported_is_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", COMMAND, "data", "none"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGINT, "")
