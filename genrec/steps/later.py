"""Steps that answer later, from threads of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext

from genrec.steps import Answer, Tensors

Respond = Callable[[Answer], None]


class AnswersLater:
    """A step with `submit`; `run` waits for what it answers."""

    def submit(self, request: Tensors, respond: Respond) -> None:
        """Answer one request by `respond`, later and from another thread, or at once where nothing is to do."""
        raise NotImplementedError

    def bringing(self) -> AbstractContextManager[None]:
        """Around `submit` of the requests that come together; it may answer in their thread until it ends."""
        return nullcontext()

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        answers: list[Future[Answer]] = [Future() for _ in requests]
        for request, answer in zip(requests, answers, strict=True):
            self.submit(request, answer.set_result)
        return [answer.result() for answer in answers]
