"""`genrec bench company`: who is not answered ends it, and no arm is cold when it is timed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.main import main
from genrec.errors import InputError
from perf.slo import company


def test_a_prompt_that_is_refused_on_another_thread_ends_the_benchmark() -> None:
    class Step:
        def submit(self, prompt: dict[str, Any], respond: Callable[[Any], None]) -> None:
            threading.Thread(target=respond, args=[prompt["answer"]]).start()

    step: Any = Step()
    prompts = [{"answer": answer} for answer in ({}, InputError("tokens", "are wrong", "others"), {})]
    with pytest.raises(InputError, match="tokens: are wrong"):
        company.drive(step, prompts, np.zeros(3))
    assert len(company.drive(step, [{"answer": {}}] * 2, np.zeros(2))) == 2


def test_every_wait_has_met_all_prompts_before_it_is_timed(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    met: dict[int, int] = {}
    right = company.Generate.run

    def run(self: company.Generate, prompts: list[dict[str, Any]]) -> list[Any]:
        met[id(self)] = met.get(id(self), 0) + len(prompts)
        return right(self, prompts)

    def drive(step: company.Generate, prompts: list[dict[str, Any]], _: object) -> list[float]:
        assert met[id(step)] >= len(prompts)
        return [0.001] * len(prompts)

    monkeypatch.setattr(company.Generate, "run", run)
    monkeypatch.setattr(company, "drive", drive)
    assert main(["bench", "company", str(tiny), "--prompts", "4", "--rounds", "1", "--beam-width", "16"]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["waits"]) == 12 and len(met) == 3
