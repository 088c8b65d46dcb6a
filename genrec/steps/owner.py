"""Whom a request names, INT64[3]: written by a first step, read by those that keep KV."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from genrec.pool.owner import Owner
from genrec.steps import Tensors, check_tensor


def owner_of(request: Tensors, now_ns: int) -> NDArray[np.int64]:
    """int64[1, 3]: whether a user is named, which, and when the request came, on the monotonic clock.

    That is now, unless a step before this one has said when.
    """
    came_ns = read_owner(request).came_ns if "owner" in request else now_ns
    named = "user_id" in request
    user = check_tensor(request, "user_id", np.int64, 1)[0] if named else 0
    return np.array([[named, user, came_ns]], np.int64)


def read_owner(request: Tensors) -> Owner:
    """The same of a later step; nobody comes later than now. Raises InputError."""
    named, user, came_ns = (int(x) for x in check_tensor(request, "owner", np.int64, 3))
    return Owner(bool(named), user, min(came_ns, time.monotonic_ns()))
