"""The manifest under several processes, and what it says of files that were replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from build.cuda.engines import build_engines
from genrec import manifest, progress
from genrec.errors import ArtifactError
from tests.serving.processes import until

ROOT = Path(__file__).resolve().parents[2]
RECORDS = """
import sys
from pathlib import Path
from genrec.manifest import record
for number in range(100):
    record(Path(sys.argv[1]), f"{sys.argv[2]}{number}", "key", [], {})
"""
DIES = """
import os, sys
from pathlib import Path
from genrec import manifest
def put(partial, path):
    next(renames, None) or os._exit(9)
    os.replace(partial, path)
renames = iter([True] * int(sys.argv[2]))
manifest.put, folder = put, Path(sys.argv[1])
manifest.replace(folder, "hstu", manifest.read(folder)["hstu"], {folder / "aside": folder / "model"}, {"is": "new"})
"""

HASHES = """
import os, sys
from pathlib import Path
from build.cuda.engines import build_engines
from genrec import hashing
sha256_of = hashing.sha256_of
hashing.sha256_of = lambda path, moved: os._exit(9) if "engines" in str(path) else sha256_of(path, moved)
build_engines(Path(sys.argv[1]), "bf16", "cpu")
"""


def test_processes_that_enter_stages_at_once_lose_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RECORDS, str(tmp_path)]
    jobs = [subprocess.Popen([*command, name], cwd=ROOT) for name in "ab"]
    assert [job.wait() for job in jobs] == [0, 0]
    assert len(manifest.read(tmp_path)) == 200


def test_what_another_process_has_made_anew_is_not_replaced(tmp_path: Path) -> None:
    model, aside = tmp_path / "model", tmp_path / "aside"
    model.write_text("one")
    manifest.record(tmp_path, "hstu", "key", [model], {})
    made = manifest.read(tmp_path)["hstu"]
    for content in ("two", "three"):
        aside.write_text(content)
        manifest.replace(tmp_path, "hstu", manifest.read(tmp_path)["hstu"], {aside: model}, {"is": content})
    aside.write_text("of one")
    with pytest.raises(
        ArtifactError, match="hstu was made anew by another process meanwhile; run this again"
    ):
        manifest.replace(tmp_path, "hstu", made, {aside: model}, {})
    assert model.read_text() == "three" and manifest.read(tmp_path)["hstu"]["facts"] == {"is": "three"}
    manifest.verify(tmp_path)


@pytest.mark.parametrize("renames", [0, 1])
def test_killed_among_the_renames_it_is_completed_or_as_before(tmp_path: Path, renames: int) -> None:
    model = tmp_path / "model"
    model.write_text("old")
    manifest.record(tmp_path, "hstu", "key", [model], {"is": "old"})
    (tmp_path / "aside").write_text("new")
    command = [sys.executable, "-c", DIES, str(tmp_path), str(renames)]
    assert subprocess.run(command, cwd=ROOT).returncode == 9
    with manifest.making(tmp_path, "data"):  # whatever comes next
        manifest.verify(tmp_path)
    expected = "new" if renames else "old"
    assert model.read_text() == expected and manifest.read(tmp_path)["hstu"]["facts"] == {"is": expected}
    manifest.record(tmp_path, "data", "key", [], {})
    assert manifest.read(tmp_path).keys() == {"hstu", "data"}


def test_killed_while_it_hashes_new_engines_the_old_ones_are_served(tmp_path: Path) -> None:
    build_engines(tmp_path, "f32", "cpu")
    before = manifest.read(tmp_path)
    command = [sys.executable, "-c", HASHES, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT).returncode == 9
    manifest.verify(tmp_path)
    assert manifest.read(tmp_path) == before
    assert build_engines(tmp_path, "bf16", "cpu") and not build_engines(tmp_path, "bf16", "cpu")
    manifest.verify(tmp_path)
    assert [path.name for path in (tmp_path / "engines").iterdir()] == ["cuda"]


def test_a_stage_of_files_that_were_replaced_is_refused(tmp_path: Path) -> None:
    histories, catalogue = tmp_path / "histories.parquet", tmp_path / "catalogue.parquet"
    histories.write_text("one")
    catalogue.write_text("of one")
    manifest.record(tmp_path, "data", "key", [histories], {})
    of = {manifest.OF: {histories.name: manifest.recorded(tmp_path, histories.name)}}
    manifest.record(tmp_path, "tokenise", "key", [catalogue], of)
    manifest.check_inputs(tmp_path, "tokenise")
    manifest.check_inputs(tmp_path, "train")
    histories.write_text("two")
    manifest.record(tmp_path, "data", "another", [histories], {})
    said = rf"{catalogue}: is of an earlier histories\.parquet; `genrec data {tmp_path}` makes it anew"
    with pytest.raises(ArtifactError, match=said):
        manifest.check_inputs(tmp_path, "tokenise")


def test_histories_that_nobody_can_look_at_are_not_left_out(tmp_path: Path) -> None:
    """Of a link whose name is too long, as of one without an end, nothing can be told."""
    histories = tmp_path / "histories.parquet"
    histories.write_text("one")
    manifest.record(tmp_path, "data", "key", [histories], {})
    histories.unlink()
    manifest.verify(tmp_path)
    for target in ("x" * 300, histories.name):
        histories.symlink_to(target)
        with pytest.raises(ArtifactError, match=r"histories\.parquet: cannot be read"):
            manifest.verify(tmp_path)
        histories.unlink()


def test_a_change_is_seen_though_size_and_time_of_modification_are_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who damages a file, or unpacks another in its place, may set that time; not the time of the change itself."""
    monkeypatch.setattr(manifest, "SETTLED_NS", -1)  # the file is new
    path, digests = tmp_path / "file", manifest.Digests()
    path.write_bytes(b"one")
    before, at = digests(path), path.stat()

    def changed() -> bool:
        path.write_bytes(b"two")
        os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
        return path.stat().st_ctime_ns > at.st_ctime_ns

    until(changed)  # not in the same tick of the clock
    assert digests(path) != before


def test_one_process_at_a_time_makes_a_stage_and_a_killed_one_is_not_at_it(tmp_path: Path) -> None:
    works = "from genrec.manifest import making\nfrom pathlib import Path\nimport sys, time\n"
    works += "with making(Path(sys.argv[1]), 'train'): print('at it', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", works, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"at it\n"
        said = rf"{tmp_path}: another process makes its train now"
        with pytest.raises(ArtifactError, match=said), manifest.making(tmp_path, "train"):
            raise AssertionError("two at a time")
        with manifest.making(tmp_path, "ranker"):
            other.kill()
    with manifest.making(tmp_path, "train"):
        assert list(tmp_path.iterdir()) == []


def test_progress_is_shown_of_outputs_that_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When they are entered, when they are put in the place of others, and when they are looked at again."""
    shown: list[tuple[int, int]] = []  # bytes in all, and those that were told of

    @contextmanager
    def counting(what: str, total: int, unit: str) -> Iterator[SimpleNamespace]:
        told: list[int] = []
        yield SimpleNamespace(update=told.append)
        shown.append((total, sum(told)))

    monkeypatch.setattr(progress, "counting", counting)
    large, small, aside = (tmp_path / name for name in ("large", "small", "aside"))
    large.write_bytes(bytes(3 << 20))
    small.write_text("small")
    aside.write_text("other")
    manifest.record(tmp_path, "hstu", "key", [small, large], {})
    with manifest.renewed(tmp_path, "export", "key", tmp_path / "onnx", {}) as new:
        (new / "graph").write_bytes(bytes(7))
    both = (3 << 20) + 5
    assert shown == [(both, both), (7, 7)]
    assert manifest.is_good(tmp_path, "hstu", "key") and shown.pop() == (both, both)
    manifest.replace(tmp_path, "hstu", manifest.read(tmp_path)["hstu"], {aside: small}, {})
    assert shown.pop() == (5, 5)
    large.unlink()
    assert not manifest.is_good(tmp_path, "hstu", "key") and len(shown) == 2, (
        "nothing is read where a file is missing"
    )


def test_who_reads_manifests_does_without_tqdm(tmp_path: Path) -> None:
    works = "import sys\nsys.modules['tqdm'] = None\nfrom pathlib import Path\nfrom genrec.manifest import verify\n"
    manifest.record(tmp_path, "data", "key", [], {})
    subprocess.run(
        [sys.executable, "-c", f"{works}verify(Path(sys.argv[1]))", str(tmp_path)], cwd=ROOT, check=True
    )
