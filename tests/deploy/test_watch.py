"""Which dead process takes the whole server along."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from deploy.watch import ANSWERS_LATER, READS_REQUESTS
from ensembles.served import served
from genrec.steps import STEPS
from genrec.steps.later import AnswersLater

MODELS = Path(__file__).resolve().parents[2] / "model_repository"


def test_every_model_that_answers_later_is_known() -> None:
    models = {path.name for path in MODELS.iterdir()} & STEPS.keys()
    classes = {name: getattr(import_module(f"genrec.steps.{name}"), STEPS[name]) for name in models}
    assert {name for name, step in classes.items() if issubclass(step, AnswersLater)} == ANSWERS_LATER


def test_every_model_that_reads_requests_is_known() -> None:
    """What an ensemble begins with, or takes of its inputs that may be left out; batches of others have no gaps."""
    found = served(3, True, True, "openvino")
    reads = {
        step.model
        for each in found
        for step in each.steps
        if set(step.inputs.values()) & {tensor.name for tensor in each.inputs if tensor.optional}
    }
    assert reads - ANSWERS_LATER == READS_REQUESTS
