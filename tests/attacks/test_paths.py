"""Spaces and umlauts in the path of the checkout, the run folder, the artifact and TMPDIR; and nothing is left there.

About 10 s: a server of its own, from a checkout of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import tritonclient.grpc

from tests.serving.processes import until
from tests.serving.wire import ask, tensors

ROOT = Path(__file__).resolve().parents[2]
NAME = "Gerät (neu), 東京"
SERVE = "import sys; from pathlib import Path; from deploy import launcher; "
SERVE += (
    "launcher.serve(Path(sys.argv[1]), run_dir=Path(sys.argv[2]), beam_width=8, ensembles=('recommend',))"
)


def test_a_server_starts_whatever_its_folders_are_called(
    tiny: Path, items: list[int], tmp_path: Path
) -> None:
    """The interpreter's own folder has such a name too: it is found through a link in the checkout."""
    folder = tmp_path / NAME
    artifact = shutil.copytree(tiny, folder / "artifact")
    run_dir, temporary = folder / "run", folder / "tmp"
    temporary.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    for room in ("genrec", "deploy", "ensembles", "model_repository"):
        shutil.copytree(ROOT / room, folder / room)
    python = folder / ".venv" / "bin" / Path(sys.executable).name
    environment = {**os.environ, "TMPDIR": str(temporary)}
    launcher = subprocess.Popen([python, "-c", SERVE, artifact, run_dir], cwd=folder, env=environment)
    try:
        file = run_dir / "server.json"
        until(lambda: file.exists() or launcher.poll() is not None)
        about = json.loads(file.read_text())
        assert ask(tritonclient.grpc, about["grpc_url"], tensors(items[:3]))["item_ids"].size
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(60)
    assert sorted(path.name for path in run_dir.iterdir()) == ["server.log"]
    assert list(temporary.iterdir()) == []  # each start left a python_env_* there
