"""What became of a request, where that is known: in the step that answers it, or in the one that refuses it."""

from __future__ import annotations

from genrec import metrics
from genrec.errors import ArenaFull, DeadlineExceeded, GenrecError, InputError, QueueFull
from genrec.report import POPULARITY, PreInferReport
from genrec.steps import Answer

REFUSALS: tuple[tuple[type[GenrecError], str], ...] = (
    (InputError, metrics.BAD_INPUT),
    (DeadlineExceeded, metrics.DEADLINE),
    (QueueFull, metrics.QUEUE),
    (ArenaFull, metrics.ARENA),
)


def outcome_of(answer: Answer) -> str | None:
    """One of `metrics.OUTCOMES`; None while the request goes on to another step."""
    if isinstance(answer, GenrecError):
        return next((outcome for kind, outcome in REFUSALS if isinstance(answer, kind)), metrics.FAILED)
    if "reuse" in answer and answer["reuse"].shape[1] == len(PreInferReport._fields):
        return metrics.ANSWERED  # a pre-inference ends where rankings are scored
    if "report" not in answer:
        return None
    return metrics.POPULARITY if answer["report"][0, 0] == POPULARITY else metrics.ANSWERED


def count(answer: Answer) -> None:
    """Count the request if it ends here."""
    if outcome := outcome_of(answer):
        metrics.REQUESTS.add(outcome=outcome)
