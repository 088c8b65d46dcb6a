"""What lies beside an engine as its compiled graphs never changes an answer: it is sound, or it is made anew."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from genrec.engine.blobs import ABANDONED_S, KeptGraphs
from genrec.engine.instructions import chosen, engine_of
from genrec.engine.openvino import OpenVinoPasses
from genrec.engine.openvino_graphs import OpenVinoGraphs
from genrec.errors import ArtifactError

WEIGHTS = re.compile(r'element_type="f32" shape="64, 32" offset="(\d+)" size="8192"')
HINTS = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
ANSWER = """
import sys
from pathlib import Path
from tests.attacks.test_blobs_are_not_believed import answer
print(answer(Path(sys.argv[1])).tobytes().hex())
"""


@pytest.fixture
def engine(tiny: Path, tmp_path: Path) -> Path:
    """The tiny engines, with no blob yet."""
    return without_blobs(tiny, tmp_path)


def without_blobs(artifact: Path, tmp_path: Path) -> Path:
    engines = engine_of(artifact, "openvino")
    return Path(shutil.copytree(engines, tmp_path / "o", ignore=lambda *_: ["cache"]))


def answer(engine: Path, cache: bool = True) -> np.ndarray:
    """Logits of a prefill by a process that starts now."""
    logits, span = np.zeros((1, 1, 12), np.float32), 32
    kv = [np.zeros((1, 2, span, 8), np.float32) for _ in range(4)]
    passes = OpenVinoPasses(OpenVinoGraphs(engine, "f32", 1, cache=cache))
    passes.prefill(np.arange(span)[None] % 36, np.array([span]), logits, kv)
    return logits


def blob_of(engine: Path) -> Path:
    (blob,) = (engine / "cache").glob("prefill-*")
    return blob


class Spy:
    """OpenVINO's core, which counts; what it compiled once it need not compile again."""

    def __init__(self, engine: Path) -> None:
        self._core = ov.Core()
        self.libraries = [engine / each.library for each in [chosen(engine, "f32")] if each]
        for library in self.libraries:
            self._core.add_extension(str(library))
        self._graph = engine / "prefill.xml"
        self._kept = KeptGraphs(engine / "cache", self.libraries)
        self._compiled: Any = None
        self.compiles = 0

    def compile_model(self, path: str, device: str, hints: dict[str, Any]) -> Any:
        self.compiles += 1
        self._compiled = self._compiled or self._core.compile_model(path, device, hints)
        return self._compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def is_compiled_again(self, **hints: Any) -> bool:
        """Start; whether that found no sound blob."""
        before = self.compiles
        self._kept.compile(self, self._graph, {**HINTS, **hints})
        return self.compiles > before


def test_a_start_with_a_blob_compiles_nothing_and_answers_alike(engine: Path) -> None:
    spy = Spy(engine)
    assert spy.is_compiled_again() and not spy.is_compiled_again()
    assert spy.is_compiled_again(INFERENCE_NUM_THREADS=2) and not spy.is_compiled_again()
    np.testing.assert_array_equal(answer(engine), answer(engine, cache=False))
    np.testing.assert_array_equal(answer(engine), answer(engine, cache=False))  # the second is from the blob


def test_a_flipped_bit_anywhere_is_found(engine: Path) -> None:
    spy, draw = Spy(engine), np.random.default_rng(1)
    spy.is_compiled_again()
    size = len(blob_of(engine).read_bytes())
    for place in [0, size - 33, size - 32, size - 1, *draw.integers(0, size, 40).tolist()]:
        content = bytearray(blob_of(engine).read_bytes())
        content[place] ^= 1 << draw.integers(8)
        blob_of(engine).write_bytes(content)
        assert spy.is_compiled_again(), place
        assert not spy.is_compiled_again()


@pytest.mark.parametrize("content", ["flipped", "random", "cut", "empty", "folder"])
def test_damaged_blobs_change_no_answer(engine: Path, content: str) -> None:
    before, draw = answer(engine), np.random.default_rng(2)
    blob = blob_of(engine)
    good = bytearray(blob.read_bytes())
    if content == "flipped":
        for place in draw.integers(len(good) // 2, len(good), 500):
            good[place] ^= 1
    elif content == "random":
        good[-9000:-7000] = draw.bytes(2000)
    blob.write_bytes(good if content in ("flipped", "random") else good[:1000] if content == "cut" else b"")
    if content == "folder":
        blob.unlink()
        (blob / "in the way").mkdir(parents=True)
    for _ in range(2):
        np.testing.assert_array_equal(answer(engine), before)


def test_new_weights_under_an_untouched_graph_are_the_ones_that_answer(
    tiny_of_nodes: Path, tmp_path: Path
) -> None:
    """Of a graph in OpenVINO's own nodes: to operations of ours weights are inputs."""
    engine = without_blobs(tiny_of_nodes, tmp_path)
    before, weights = answer(engine), engine / "prefill.bin"
    former, times = blob_of(engine), weights.stat()
    places = [int(place) for place in WEIGHTS.findall((engine / "prefill.xml").read_text())]
    content = weights.read_bytes()
    for place in places:
        values = np.frombuffer(content, np.float32, 64 * 32, place) * np.float32(1.5)
        content = content[:place] + values.tobytes() + content[place + values.nbytes :]
    weights.write_bytes(content)
    assert places and weights.stat().st_size == times.st_size
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = answer(engine)
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_array_equal(after, answer(engine, cache=False))
    assert not former.exists()


def test_other_operations_are_compiled_anew(engine: Path) -> None:
    spy = Spy(engine)
    spy.is_compiled_again()
    with spy.libraries[0].open("ab") as file:  # another build: what it computes is not known
        file.write(b"0")
    assert spy.is_compiled_again() and not spy.is_compiled_again()


def test_where_nothing_can_be_kept_the_engine_works(engine: Path) -> None:
    (engine / "cache").write_text("no folder")  # as a read-only one: no blob can be opened or made
    np.testing.assert_array_equal(answer(engine), answer(engine, cache=False))
    assert (engine / "cache").read_text() == "no folder"


def test_processes_that_start_at_once_leave_one_sound_blob(engine: Path) -> None:
    start = [sys.executable, "-c", ANSWER, str(engine)]
    root = Path(__file__).resolve().parents[2]
    processes = [subprocess.Popen(start, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    told = {process.communicate(timeout=300)[0].strip() for process in processes}
    assert told == {answer(engine, cache=False).tobytes().hex()}
    assert [path.suffix for path in (engine / "cache").iterdir()] == [".blob"]


def test_what_a_killed_writer_left_goes_when_it_is_old(engine: Path) -> None:
    cache = engine / "cache"
    cache.mkdir()
    old, new = cache / "prefill-1-2.3.partial", cache / "prefill-1-2.4.partial"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, new.stat().st_mtime - ABANDONED_S - 10))
    answer(engine)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("file", ["prefill.bin", "prefill.xml"])
def test_an_engine_that_is_cut_is_named(engine: Path, file: str) -> None:
    """As when its hash in the manifest was made anew, so that no check finds it before OpenVINO does."""
    path = engine / file
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ArtifactError, match=rf"^{engine}/.*{file}") as refused:
        answer(engine)
    assert "\n" not in str(refused.value) and "Exception from" not in str(refused.value)
