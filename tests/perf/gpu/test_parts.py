"""Which parts of the GPU script run, and what becomes of those that cannot."""

import importlib
import json

import pytest
import torch

from genrec.errors import InputError
from perf.gpu import attention, parts, run


def test_what_needs_a_part_that_failed_is_left_out(monkeypatch, tmp_path):
    before = {""}
    for name, _, needed in parts.IN_ORDER:
        assert needed in before
        before.add(name)
    ran = []

    def fails(_):
        ran.append("fails")
        raise ValueError("as it does")

    order = (("build", fails, ""), ("check", lambda _: ran.append("left out"), "build"))
    monkeypatch.setattr(parts, "IN_ORDER", (*order, ("fused", lambda _: ran.append("runs"), "")))
    kept = parts.GpuResults()
    parts.measure_all(kept, torch.device("cpu"), tmp_path, dry=True)
    assert ran == ["fails", "runs"] and set(kept.results["failed"]) == {"build"}


def test_every_part_is_told_of_as_it_ends(capsys):
    kept = parts.GpuResults(asked=["rank"])
    for name in ("build", "rank", "train"):
        kept.part(name, lambda: None)
    said = capsys.readouterr()
    assert [line.partition(":")[0] for line in said.err.splitlines()] == ["build", "rank"] and not said.out


@pytest.fixture
def saved(monkeypatch, tmp_path):
    """A saved result with figures of two parts, on a machine whose card is stood in for; and what a run measures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(run, "about", lambda device, commit: {"name": "card"})
    path = tmp_path / "results" / "card" / "gpu.json"
    path.parent.mkdir(parents=True)
    took = {"build": 1.0, "rank": 2.0, "kernel": 3.0, "hstu": 0.1}
    path.write_text(json.dumps({"seconds": took, "skipped": {"hstu": "no time was left"}, "failed": {}}))

    def measures(*names, skipped=()):
        def measure(kept, *_):
            kept.results |= {"seconds": dict.fromkeys(names, 1.0), "skipped": dict.fromkeys(skipped, "why")}

        monkeypatch.setattr(run, "measure_all", measure)

    return path, measures


def test_some_parts_are_not_saved_over_others(saved, capsys):
    path, measures = saved
    before, measured = path.read_bytes(), ("build", "rank", "kernel")
    measures("build", "rank")
    with pytest.raises(InputError, match=r"parts: leave out kernel, which results/card/gpu\.json has"):
        run.main(["--parts", "rank", "--save"])
    with pytest.raises(SystemExit) as ended:
        run.main(["--parts", "rank", "--save", "--label", "rank"])
    assert ended.value.code == 0 and path.with_name("gpu-rank.json").is_file()
    measures(*measured, skipped=("kernel",))
    with pytest.raises(SystemExit) as ended:
        run.main(["--parts", "rank,kernel", "--save"])
    said = capsys.readouterr().out
    assert ended.value.code == 1 and "NOT KEPT: results/card/gpu.json has kernel" in said
    assert path.read_bytes() == before and json.loads(said.splitlines()[-1])["skipped"] == {"kernel": "why"}
    measures(*measured)
    with pytest.raises(SystemExit) as ended:
        run.main(["--parts", "rank,kernel", "--save"])
    assert ended.value.code == 0 and path.read_bytes() != before


def test_what_our_own_packages_lack_is_a_failure():
    kept = parts.GpuResults()
    for module in ("numba.core", "genrec.nothing"):
        kept.part(module, lambda name=module: importlib.import_module(f"{name}.none_such"))
    kept.part("tool", lambda: attention.sanitize(None))
    assert set(kept.results["skipped"]) == {"numba.core", "tool"}
    assert set(kept.results["failed"]) == {"genrec.nothing"}
