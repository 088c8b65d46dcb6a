"""Which parts of the GPU script run, and what becomes of those that cannot."""

import importlib

import torch

from perf.gpu import attention, parts


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


def test_what_our_own_packages_lack_is_a_failure():
    kept = parts.GpuResults()
    for module in ("numba.core", "genrec.nothing"):
        kept.part(module, lambda name=module: importlib.import_module(f"{name}.none_such"))
    kept.part("tool", lambda: attention.sanitize(None))
    assert set(kept.results["skipped"]) == {"numba.core", "tool"}
    assert set(kept.results["failed"]) == {"genrec.nothing"}
