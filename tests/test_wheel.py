"""What `pip install` puts where: a client alone, and no package that takes another's name."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from genrec.__main__ import extra_of

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "openvino",
    "torch",
    "pytriton",
    "numba",
    "pyarrow",
    "safetensors",
    "tqdm",
    "onnx",
    "faiss",
    "duckdb",
    "matplotlib",
)
# A fresh process in which nothing but numpy and tritonclient is installed, as far as imports can tell.
ALONE = f"""
import sys
sys.path = [path for path in sys.path if path != {str(ROOT)!r}]
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = out.glob("*.whl")
    with zipfile.ZipFile(made) as file:
        file.extractall(out / "installed")
    return out / "installed"


def run(wheel: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ALONE + code], cwd=wheel, env={"PYTHONPATH": str(wheel)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_no_top_level_package_takes_a_common_name(wheel):
    tops = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"genrec", "clients"}
    rooms = {path.name for path in (wheel / "genrec" / "rooms").iterdir()}
    assert {"build", "export", "perf", "cli", "deploy", "model_repository"} <= rooms and "tests" not in rooms


def test_the_client_needs_numpy_and_tritonclient_alone(wheel):
    done = run(wheel, "import clients.recommender, clients.aio; print(clients.recommender.__file__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(wheel))


def test_the_command_names_the_extra_that_is_missing(wheel):
    door = "import genrec.__main__ as door; sys.argv = ['genrec', *{}]; sys.exit(door.main())"
    done = run(wheel, door.format(["serve", "nowhere"]))
    assert done.returncode == 2 and "pip install '.[serve]'" in done.stderr
    assert "Traceback" not in done.stderr
    of_data = run(wheel, door.format(["data", "nowhere"])).stderr
    assert "it is in the extra train: pip install '.[train]'" in of_data, "not that of serve"
    assert run(wheel, door.format(["--help"])).returncode == 0


def test_what_is_missing_is_told_and_no_library_that_errors_are_looked_up_in(wheel):
    """An error that nobody foresaw was told as safetensors not being installed, and so was any other library."""
    rooms = "sys.path.insert(0, 'genrec/rooms'); from cli.run import run; run('genrec', lambda: {})"
    unforeseen = run(wheel, rooms.format("1 / 0")).stderr
    assert unforeseen.splitlines()[-1] == "ZeroDivisionError: division by zero"
    door = "import genrec.__main__ as door; sys.argv = ['genrec', *{}]; sys.exit(door.main())"
    of_bench = run(wheel, door.format(["bench", "peers"])).stderr
    assert "is not installed" in of_bench and "safetensors" not in of_bench


@pytest.mark.parametrize(
    ("library", "verb", "extra"),
    [
        ("torch", "train", "train"), ("torch", "export", "export"), ("onnx", "export", "export"),
        ("onnx", "build", "build"), ("openvino", "build", "build"), ("openvino", "serve", "serve"),
        ("openvino", "evaluate", "serve"), ("torch", "bench", "train"), ("onnx", "bench", "export"),
        ("pyarrow", "build", "build"), ("matplotlib", "sweep", "perf"), ("ray", "data", "ray"),
    ],
)  # fmt: skip
def test_of_several_extras_with_a_library_it_is_that_of_the_verb(library: str, verb: str, extra: str) -> None:
    """Another one lacks what the verb needs besides, and may bring gigabytes of torch."""
    assert extra_of(library, verb) == extra


def test_a_trace_with_groups_needs_no_extra(wheel):
    door = "import genrec.__main__ as door; sys.argv = ['genrec', *{}]; sys.exit(door.main())"
    done = run(wheel, door.format(["trace", "127.0.0.1:9", "--history", "1", "--only-groups", "sale"]))
    assert done.returncode == 2 and "127.0.0.1:9: failed to connect" in done.stderr


def test_the_license_is_in_it(wheel):
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    assert "License-Expression: Apache-2.0" in metadata.read_text()
    assert list(wheel.glob("*.dist-info/licenses/LICENSE"))
