"""What an import that was killed leaves goes with the next one: the weights of a large model, perhaps."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main
from genrec.manifest import verify

pytest.importorskip("transformers", reason="makes checkpoints with transformers where it is installed")

from tests.training.hugging_face.layouts import publish

KILLED = """
import os, signal, sys
from cli.main import main
from training.hugging_face import checkpoint
write = checkpoint.save_tensors
checkpoint.save_tensors = lambda *given: (write(*given), os.kill(os.getpid(), signal.SIGKILL))
main(sys.argv[1:])
"""


def test_what_a_killed_import_left_goes_with_the_next(tmp_path: Path) -> None:
    published, made = publish(tmp_path, "minionerec"), tmp_path / "artifacts"
    command = ["import", str(published.checkpoint), str(made / "mini")]
    for name, path in published.options.items():
        command += [f"--{name.replace('_', '-')}", str(path)]
    ended = subprocess.run([sys.executable, "-c", KILLED, *command], check=False)
    assert ended.returncode == -signal.SIGKILL and list(made.rglob("*.safetensors"))
    assert not (made / "mini").exists()
    assert main(command) == 0
    assert list(made.iterdir()) == [made / "mini"]
    verify(made / "mini")
