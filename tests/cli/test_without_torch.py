"""What a serving machine, which has no torch, can do besides serving."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = "import sys; sys.modules['torch'] = None; from cli.main import main; sys.exit(main(sys.argv[1:]))"


def test_a_generator_is_evaluated(shop: Path) -> None:
    command = [sys.executable, "-c", CODE, "evaluate", str(shop)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0 and "NDCG@10" in done.stdout, done.stderr
