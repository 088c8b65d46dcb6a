"""Another user serves an artifact and an installation that he may only read; without a home, and nothing is left.

About 20 s: a server of its own, whose kernels and graphs are compiled for want of a cache. Needs root, to become
another user. CAP_DAC_READ_SEARCH, which lets him read what is root's and write nothing, stands for an installation
that everyone may read: that of these tests may lie in root's home.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from genrec import leftovers

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
READ = "-all,+dac_read_search"
SERVE = """
import json, os, sys
from pathlib import Path
from deploy import probe
from deploy.launcher import running_server
artifact = Path(sys.argv[1])
with running_server(artifact, beam_width=8, ensembles=("recommend",)) as server:
    answer = probe.infer(server.http_url, "recommend", probe.known_item(artifact), 30.0)
    print(json.dumps([os.getuid(), os.access(artifact, os.W_OK), answer.problem, server.supervisor.prefix]))
"""


@pytest.mark.long
@pytest.mark.serving
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root, with setpriv, can")
def test_another_user_serves_what_he_may_only_read(tiny: Path, tmp_path: Path) -> None:
    artifact, temporary = tmp_path / "artifact", tmp_path / "tmp"
    shutil.copytree(tiny, artifact, ignore=shutil.ignore_patterns("cache"))
    before = sorted(artifact.rglob("*"))
    for path in [artifact, *before]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    temporary.mkdir()
    os.chown(temporary, NOBODY, NOBODY)
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    # Triton asks access(2) for its libraries, which counts such rights only with these bits.
    may = [
        "--securebits=+no_setuid_fixup",
        f"--inh-caps={READ}",
        f"--ambient-caps={READ}",
        f"--bounding-set={READ}",
    ]
    done = subprocess.run(
        [*user, *may, sys.executable, "-c", SERVE, artifact],
        env={"PATH": os.defpath, "HOME": "/nonexistent", "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    uid, may_write, problem, prefix = json.loads(done.stdout.splitlines()[-1])
    assert (uid, may_write, problem) == (NOBODY, False, "")
    assert sorted(artifact.rglob("*")) == before
    assert list(temporary.iterdir()) == []
    assert leftovers.files_of(prefix) == []
