"""Signals: their tensors and answers, and which histories need none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clients.rank_wire import PreInference, parse_pre_inference, pre_infer_tensors
from clients.trigger import BELIEVED_S, Trigger
from genrec.errors import GenrecError, InputError
from genrec.report import PRE_INFER_OUTCOMES


class Report:
    """An answer with this report and nothing else."""

    def __init__(self, report: Any) -> None:
        self._report = report

    def as_numpy(self, name: str) -> Any:
        return self._report if name == "report" else None


def test_a_signal_s_tensors_and_its_answer() -> None:
    made = pre_infer_tensors([3, -4], 7, 50)
    assert {name: (t.dtype.name, t.tolist()) for name, t in made.items()} == {
        "history": ("int64", [[3, -4]]),
        "user_id": ("int64", [[7]]),
        "deadline_ms": ("int64", [[50]]),
    }
    assert "deadline_ms" not in pre_infer_tensors([], 7, None)
    for field, arguments in (
        ("history", ([0.5], 7, 1)),
        ("user_id", ([], None, 1)),
        ("deadline_ms", ([], 7, 0.5)),
    ):
        with pytest.raises(InputError, match=f"^{field}: "):
            pre_infer_tensors(*arguments)  # type: ignore[arg-type]
    for number, outcome in enumerate(PRE_INFER_OUTCOMES):
        found = parse_pre_inference(Report(np.array([[number, 30, 3, 2, 7]])))
        assert found == PreInference(outcome, 30, 3, 2, at_risk_from=7)
    unknown = [np.array([[number, 0, 0, 0, 0]]) for number in (-1, len(PRE_INFER_OUTCOMES))]
    for wrong in (None, np.zeros((1, 4)), np.zeros((2, 5)), *unknown):
        with pytest.raises(GenrecError, match=r"report has shape|unknown outcome"):
            parse_pre_inference(Report(wrong))


def test_all_are_signalled_until_something_is_known_and_when_that_is_old() -> None:
    now = 100.0
    trigger = Trigger(lambda: now)
    assert trigger.wants([]) and trigger.wants([1]) and trigger.wants(7)
    trigger.learn(PreInference("not_needed", 3, 0, 0, at_risk_from=4))
    assert [trigger.wants([1] * n) for n in (0, 3, 4, 5)] == [False, False, True, True]
    for history in (7, None, np.array(7)):
        assert trigger.wants(history), "no list of items: the ranking will refuse it by name"
    now += BELIEVED_S
    assert not trigger.wants([1])
    now += 0.01
    assert trigger.wants([1])
    trigger.learn(PreInference("admitted", 3, 0, 0, at_risk_from=0))
    assert trigger.wants([]), "the server does not know either"
