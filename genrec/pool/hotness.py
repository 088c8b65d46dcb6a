"""How often users come, and how soon they come back: what admission and eviction go by.

BAT, section 5.3: a user's frequency f is the number of his requests in a sliding window, here of two halves. Beyond the
paper: the chance of a return, learnt as requests pass, by how often the user had come of late and how long ago. Both
live in one array of fixed size that processes may share; where it is full, who came longest ago is forgotten. Two
processes that count at the same moment may lose a count, nothing else.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from genrec.pool.keys import Words

OWNERS = 1 << 16  # that are remembered, 96 bytes each
WINDOW_S = 300.0
# Ages between which a chance of return is learnt
EDGES_S = np.array([0, 5, 10, 20, 40, 80, 160, 320, 640, 1280.0])
SPANS = len(EDGES_S) - 1
OFTEN = 8  # earlier requests in the window that are told apart
WAYS = 8
KEY, KEY_2, HALF, COUNT, OLD, LAST, EARLIER = range(7)  # words of an owner's row; LAST in ns, 0: free
WHO, WHEN, THEN, WHOSE = range(4)  # words of a request remembered: row, time, earlier requests, key
NEVER = 1  # ns: a time at which nobody came
Numbers = NDArray[np.int64]
Table = NDArray[np.float64]


class Hotness:
    """Frequencies and returns of owners; times are ns of one clock, later than 0."""

    def __init__(
        self, memory: NDArray[np.uint8] | None = None, owners: int = OWNERS, window_s: float = WINDOW_S
    ) -> None:
        """Over `memory` uint8[bytes_for(owners)], all zero when new; without it over memory of its own.

        `owners` is a power of two, at least 8. `price` is of a token's place for a second, `items` how many tokens the
        candidates had that were ranked last.
        """
        self._owners, self._half = owners, int(window_s / 2 * 1e9)
        self.lie_in(memory)

    def lie_in(self, memory: NDArray[np.uint8] | None) -> None:
        """From now on in this memory, with what is in it."""
        owners = self._owners
        words = (np.zeros(self.bytes_for(owners), np.uint8) if memory is None else memory).view(np.int64)
        self._rows, rest = words[: 8 * owners].reshape(-1, 8), words[8 * owners :]
        self._requests, rest = rest[: 4 * owners].reshape(-1, 4), rest[4 * owners :]
        self._read, rest = rest[: SPANS + 1], rest[SPANS + 1 :]  # requests written, then passed by each span
        tables, (self.price, self.items) = rest[:-2].view(np.float64), np.split(rest[-2:].view(np.float64), 2)
        self.returns, self.exposed = tables.reshape(2, OFTEN + 1, SPANS)
        if not self.exposed.any():  # before anything is known: a return in a thousand seconds
            self.returns[:], self.exposed[:] = 0.05, 50.0

    @staticmethod
    def bytes_for(owners: int = OWNERS) -> int:
        """Size of the memory."""
        return 8 * (12 * owners + SPANS + 1 + 2 * (OFTEN + 1) * SPANS + 2)

    def see(self, owner: Words, now: int) -> float:
        """A request of `owner` uint64[2]: his requests in the window before this one."""
        return float(
            _see(self._rows, self._requests, self._read, self.returns, self.exposed, owner, now, self._half)
        )

    def frequency(self, owners: Words, now: int) -> Table:
        """float64[n] of owners uint64[n, 2]: requests in the window, BAT's f."""
        return _frequency(self._rows, owners, now, self._half)

    def chance(self, owners: Words, now: int) -> Table:
        """float64[n]: returns a second that are to be expected of each now."""
        return _chance(self._rows, self.returns, self.exposed, owners, now)

    def net(self, earlier: float, gain: float, size: float) -> float:
        """What keeping `size` tokens saves until it no longer pays, if a return saves `gain` tokens; in tokens.

        The place has a price, `price` per token and second; returns are followed by returns.
        """
        known = max(min(int(earlier), OFTEN), 0)
        return float(_net(self.returns, self.exposed, float(self.price[0]), known, gain, size))

    def forget(self, owner: Words) -> None:
        """Nothing is known of this owner any more."""
        row = _find(self._rows, owner)
        if row >= 0:
            self._rows[row] = 0
        his = self._requests[:, WHOSE] == owner[:1].view(np.int64)
        self._requests[his] = 0, NEVER, 0, 0


@njit(cache=True, nogil=True)
def _find(rows: Numbers, owner: Words) -> int:
    start = np.int64(owner[0] & np.uint64(len(rows) // WAYS - 1)) * WAYS
    for row in range(start, start + WAYS):
        if (
            rows[row, KEY] == np.int64(owner[0])
            and rows[row, KEY_2] == np.int64(owner[1])
            and rows[row, LAST]
        ):
            return row
    return -1


@njit(cache=True, nogil=True)
def _take(rows: Numbers, owner: Words) -> int:
    """The owner's row, or that of who came longest ago in its bucket."""
    row = _find(rows, owner)
    if row >= 0:
        return row
    start = np.int64(owner[0] & np.uint64(len(rows) // WAYS - 1)) * WAYS
    oldest = int(start + np.argmin(rows[start : start + WAYS, LAST]))
    rows[oldest] = 0
    rows[oldest, KEY], rows[oldest, KEY_2] = np.int64(owner[0]), np.int64(owner[1])
    return oldest


@njit(cache=True, nogil=True)
def _count(row: Numbers, now: int, half: int) -> float:
    """Requests in the window: of this half, and of the half before it what the window still covers."""
    gone = now // half - row[HALF]
    part = now % half / half
    if gone == 0:
        return row[COUNT] + row[OLD] * (1 - part)
    return row[COUNT] * (1 - part) if gone == 1 else 0.0


@njit(cache=True, nogil=True)
def _told(earlier: int) -> int:
    """Of earlier requests those that are told apart: what lies in memory that processes share may be any number."""
    return max(min(earlier, OFTEN), 0)


@njit(cache=True, nogil=True)
def _span(age: float) -> int:
    return int(np.searchsorted(EDGES_S, age, side="right")) - 1


@njit(cache=True, nogil=True)
def _see(
    rows: Numbers, requests: Numbers, read: Numbers, returns: Table, exposed: Table, owner: Words, now: int, half: int
) -> float:  # fmt: skip
    _pass_time(rows, requests, read, exposed, now)
    row = _take(rows, owner)
    mine = rows[row]
    earlier = _count(mine, now, half)
    age = (now - mine[LAST]) / 1e9
    if mine[LAST] and 0 <= age < EDGES_S[-1]:
        span = _span(age)
        returns[_told(mine[EARLIER]), span] += 1
        exposed[_told(mine[EARLIER]), span] += age - EDGES_S[span]
    gone = now // half - mine[HALF]
    if gone:
        mine[OLD] = mine[COUNT] if gone == 1 else 0
        mine[COUNT], mine[HALF] = 0, now // half
    mine[COUNT] += 1
    mine[LAST], mine[EARLIER] = now, _told(int(earlier))
    at = read[0] % len(requests)
    requests[at, WHO], requests[at, WHEN] = row, now
    requests[at, THEN], requests[at, WHOSE] = mine[EARLIER], mine[KEY]
    read[0] += 1
    return earlier


@njit(cache=True, nogil=True)
def _pass_time(rows: Numbers, requests: Numbers, read: Numbers, exposed: Table, now: int) -> None:
    """Who has been away for the whole of a span was exposed to a return for that long."""
    for span in range(SPANS):
        reader = max(read[span + 1], read[0] - len(requests))
        while reader < read[0]:
            request = requests[reader % len(requests)]
            if now - request[WHEN] < EDGES_S[span + 1] * 1e9:
                break
            mine = rows[request[WHO] % len(rows)]
            if mine[LAST] == request[WHEN] and mine[KEY] == request[WHOSE]:
                exposed[_told(request[THEN]), span] += EDGES_S[span + 1] - EDGES_S[span]
            reader += 1
        read[span + 1] = reader


@njit(cache=True, nogil=True)
def _frequency(rows: Numbers, owners: Words, now: int, half: int) -> Table:
    found = np.zeros(len(owners))
    for i in range(len(owners)):
        row = _find(rows, owners[i])
        if row >= 0:
            found[i] = _count(rows[row], now, half)
    return found


@njit(cache=True, nogil=True)
def _chance(rows: Numbers, returns: Table, exposed: Table, owners: Words, now: int) -> Table:
    found = np.zeros(len(owners))
    for i in range(len(owners)):
        row = _find(rows, owners[i])
        age = (now - rows[row, LAST]) / 1e9
        if row >= 0 and 0 <= age < EDGES_S[-1]:
            span, earlier = _span(age), _told(rows[row, EARLIER])
            found[i] = returns[earlier, span] / exposed[earlier, span]
    return found


@njit(cache=True, nogil=True)
def _net(returns: Table, exposed: Table, price: float, earlier: int, gain: float, size: float) -> float:
    away, saved, back = 1.0, 0.0, 0.0
    for span in range(SPANS):
        rate, rent = returns[earlier, span] / exposed[earlier, span], price * size
        if rate * gain < rent:
            break
        length = EDGES_S[span + 1] - EDGES_S[span]
        come = away * (1 - np.exp(-rate * length))
        saved += come * gain - away * length * rent
        back, away = back + come, away - come
    return saved / max(1 - back, 0.2)
