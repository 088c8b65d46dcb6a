"""The errors people meet. Each names the field or file, what is wrong with the value, and the limit."""

from __future__ import annotations

from typing import Any


class GenrecError(Exception):
    """Root of every error this project raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled as its class called with its message, which is not what subclasses take; and a worker
        # whose error cannot be read breaks its pool, so that nobody learns what was wrong.
        return _same_again, (type(self), self.args), vars(self)


def _same_again(kind: type[GenrecError], args: tuple[Any, ...]) -> GenrecError:
    return kind.__new__(kind, *args)


class InputError(GenrecError):
    """A request or an argument is wrong: `field` has a `problem`; `limit` says what is accepted."""

    def __init__(self, field: str, problem: str, limit: str) -> None:
        self.field, self.problem, self.limit = field, problem, limit
        super().__init__(f"{field}: {problem} (accepted: {limit})")


class ArtifactError(GenrecError):
    """A file of an artifact is missing, corrupt or does not fit the others."""

    def __init__(self, path: object, problem: str) -> None:
        self.path, self.problem = str(path), problem
        super().__init__(f"{path}: {problem}")


class ModelError(GenrecError):
    """What the model computed is not finite: its weights or its engines are at fault, not the request."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: NaN or infinite values, which the model computed; look at its weights and engines"
        )


def forget_way(error: GenrecError) -> None:
    """Drop how an error that became an answer came about: where it was raised, and of what.

    The frames of its way hold what they worked with, the request's memory too. Often they hold the answers, and so the
    error itself: a cycle, which would keep all of that until the garbage collector comes by. So do those of an error
    that led to it, by itself: from Python 3.12 on a context manager that raises another one is in such a cycle.
    """
    ways: list[BaseException | None] = [error]
    while ways:
        if way := ways.pop():
            ways += way.__cause__, way.__context__
            way.__traceback__ = way.__cause__ = way.__context__ = None


def internal(name: str, error: Exception) -> GenrecError:
    """What a client is told of an error of `name` that nobody foresaw, and that is in the log."""
    return GenrecError(f"{name}: internal error ({type(error).__name__}), see the server's log")


class StaleHandle(GenrecError):
    """A KV handle whose slot was released, reaped or given to another request."""


class ArenaFull(GenrecError):
    """No run of free slots for the request; it was shed before any work."""


class QueueFull(GenrecError):
    """More requests wait than may; this one was shed before any work."""


class DeadlineExceeded(GenrecError):
    """The request's deadline has passed; the rest of its work was not done."""
