"""What `genrec bench data_scale` says of growth, and that it leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genrec.errors import InputError
from perf.training import data_scale
from perf.training.data_scale import LEAST, TIMES, arguments, growth, middle, sizes_of


def test_who_is_interrupted_leaves_no_command_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that says nothing for long, and Ctrl-C while it is listened to."""
    started: list[subprocess.Popen[str]] = []

    class Heard(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *_: object, **more: Any) -> None:
            super().__init__(["sleep", "300"], **more)
            started.append(self)
            assert self.stdout
            monkeypatch.setattr(
                self, "stdout", SimpleNamespace(read=self.interrupted, close=self.stdout.close)
            )

        def interrupted(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(data_scale.subprocess, "Popen", Heard)
    with pytest.raises(KeyboardInterrupt):
        data_scale.run_data(tmp_path, tmp_path / "artifact")
    (command,) = started
    assert command.returncode == -signal.SIGKILL


def test_growth_of_what_is_linear_has_a_fixed_part_or_is_quadratic() -> None:
    half, whole = sizes_of(8_000_000, 2)
    assert (half, whole) == (4_000_000, 8_000_000)
    assert sizes_of(100, 1) == [100]

    def took(size: int) -> dict[str, float]:
        million = size / 1e6
        by_name = {"seconds": million, "read_s": 8 + 2 * million, "tokenise_s": million**2, "cpu_s": 3}
        return middle(size, [{**by_name, "peak_gb": gb} for gb in (1, 3, 2)])

    grown = growth(took(half), took(whole))
    assert [grown[f"growth_of_{name}"] for name in TIMES] == [1, 0.75, 2, 0.5]
    assert [grown[f"added_{name}"] for name in TIMES] == [1, 2, 12, 0]
    assert took(whole)["peak_gb"] == 3 and took(whole)["read_s_per_million"] == 3


def test_growth_over_what_took_no_time_that_the_clock_tells_is_not_known() -> None:
    took = [middle(size, [{**dict.fromkeys(TIMES, 0.0), "peak_gb": 1.0}]) for size in (LEAST, 2 * LEAST)]
    assert growth(*took)["growth_of_seconds"] is None and growth(*took)["added_seconds"] == 0


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("--sizes 40", "sizes: is 40, so that the smallest shop has 0 of 100000000 .* at most 17"),
        ("--sizes 3 --interactions 3999", "has 999 of 3999 interactions .* at most 2: every shop needs 1000"),
        ("--interactions 999", "interactions: is 999 .*at least 1000"),
    ],
)
def test_shops_too_small_to_learn_from_are_refused_before_any_is_made(given: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        arguments(given.split())


def test_the_smallest_shop_goes_through(tmp_path: Path) -> None:
    data_scale.make_shop(tmp_path / "shop", LEAST, 500)
    assert data_scale.run_data(tmp_path / "shop", tmp_path / "artifact")["peak_gb"] > 0
