"""Files that are replaced as wholes, and what a kill leaves of them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from genrec.errors import ArtifactError
from genrec.files import check_regular, locked_folder, made_aside, scratch_in, write_whole

ROOT = Path(__file__).resolve().parents[2]


def test_what_fails_to_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "about.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new" * 10_000 + "\ud800")
    assert path.read_text() == "old" and os.listdir(tmp_path) == [path.name]
    path.with_name("about.json.partial").write_text("of one that was killed")
    write_whole(path, "new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == [path.name]


def test_nobody_else_reads_it_and_nobody_else_says_where_it_goes(tmp_path: Path) -> None:
    path, other = tmp_path / "about.json", tmp_path / "other"
    other.write_text("mine")
    path.with_name("about.json.partial").symlink_to(other)
    write_whole(path, "secret", 0o600)
    assert (other.read_text(), path.read_text(), path.is_symlink()) == ("mine", "secret", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    """A server writes such files, and looks at others, as long as it runs."""
    before = len(os.listdir("/proc/self/fd"))
    write_whole(tmp_path / "about.json", "new")
    check_regular(tmp_path / "about.json")
    with pytest.raises(ArtifactError, match="is not a regular file"):
        check_regular(tmp_path)
    with locked_folder(tmp_path), scratch_in(tmp_path):
        pass
    assert len(os.listdir("/proc/self/fd")) <= before


def test_scratch_of_the_killed_goes_and_that_of_the_living_stays(tmp_path: Path) -> None:
    killed = (
        "import os, sys; from pathlib import Path; from genrec.files import scratch_in\n"
        "with scratch_in(Path(sys.argv[1])) as own:\n    (own / 'half').touch(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", killed, tmp_path], cwd=ROOT).returncode == 9
    (left,) = tmp_path.iterdir()
    (tmp_path / ".other").mkdir()
    with scratch_in(tmp_path) as first, scratch_in(tmp_path) as second:
        assert first.is_dir() and second.is_dir() and not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".other"]


def test_a_folder_whose_follower_was_killed_half_way_is_there_again(tmp_path: Path) -> None:
    """It has gone by then, and the next one need not succeed."""
    killed = (
        "import os, sys; from pathlib import Path; from genrec.files import made_aside\n"
        "folder, rename = Path(sys.argv[1]), Path.rename\n"
        "Path.rename = lambda path, to: os._exit(9) if to == folder else rename(path, to)\n"
        "with made_aside(folder) as new:\n    (new / 'graph').write_text('new')"
    )
    folder = tmp_path / "onnx"
    folder.mkdir()
    (folder / "graph").write_text("old")
    assert subprocess.run([sys.executable, "-c", killed, folder], cwd=ROOT).returncode == 9
    assert not folder.exists()
    with pytest.raises(KeyError), made_aside(folder):
        raise KeyError
    assert (folder / "graph").read_text() == "old" and os.listdir(tmp_path) == ["onnx"]


@pytest.mark.parametrize("left", [(), (".old",), (".partial",), (".old", ".partial")], ids=str)
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_made_anew_whatever_was_left_beside_it(
    tmp_path: Path, there: bool, left: tuple[str, ...]
) -> None:
    """`.old` of one that was killed when all but that was done, `.partial` of one that was killed before."""
    folder = tmp_path / "onnx"
    for end in (*left, *([""] if there else [])):
        (tmp_path / f"onnx{end}").mkdir()
        (tmp_path / f"onnx{end}" / f"of {end}").touch()
    with made_aside(folder) as new:
        (new / "graph").write_text("new")
    assert os.listdir(tmp_path) == ["onnx"] and os.listdir(folder) == ["graph"]
