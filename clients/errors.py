"""What a client may have to tell apart: mend the request, come later, look at the network, at the server."""

from __future__ import annotations

import re

from genrec.errors import GenrecError, InputError

_INPUT_ERROR = re.compile(r"^(?P<field>[^:]+): (?P<problem>.*) \(accepted: (?P<limit>.*)\)$", re.DOTALL)


class BadRequest(InputError):
    """The server refused the request (gRPC INVALID_ARGUMENT, HTTP 400); sending it again gives the same.

    An InputError with its `field`, `problem` and `limit`, so one `except InputError` catches what was found
    before sending and after. What Triton itself refuses has no such parts: `field` is then "request" and
    `limit` empty.
    """

    def __init__(self, message: str) -> None:
        GenrecError.__init__(self, message)
        parts = _INPUT_ERROR.match(message)
        self.field = parts["field"] if parts else "request"
        self.problem = parts["problem"] if parts else message
        self.limit = parts["limit"] if parts else ""


class Overloaded(GenrecError):
    """The server shed the request (UNAVAILABLE, 503): arena or queue full, or deadline passed. Try later."""


class Unreachable(GenrecError):
    """No server that serves the model: connection refused or lost, starting, stopping, or no such model."""


class TimedOut(GenrecError):
    """No answer within the client's `timeout_s`. The server may still be working on the request."""


class ServerError(GenrecError):
    """The server failed (gRPC INTERNAL, HTTP 500, or an answer that is none); its log says why."""
