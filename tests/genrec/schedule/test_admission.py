"""What may be computed ahead: never more memory, and never more time, than was given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from genrec.report import ADMITTED, NO_MEMORY, NO_TIME
from genrec.schedule.admission import BURST_S, Admission

MEMORY, LEASE_S, SHARE = 1000, 0.3, 0.5


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_an_entry_holds_its_bytes_while_it_is_made_and_for_a_lease() -> None:
    clock = Clock()
    admission = Admission(MEMORY, LEASE_S, SHARE, clock)
    assert admission.admit(600, 0.01) == ADMITTED
    clock.now += 10 * LEASE_S  # however long it takes
    assert admission.admit(600, 0.01) == NO_MEMORY
    admission.end(600, made=True, unspent_s=0.0)
    clock.now += 0.9 * LEASE_S
    assert admission.admit(600, 0.01) == NO_MEMORY
    clock.now += 0.2 * LEASE_S
    assert admission.admit(600, 0.01) == ADMITTED
    admission.end(600, made=False, unspent_s=0.01)
    assert admission.admit(1000, 0.01) == ADMITTED
    assert admission.admit(1, 0.01) == NO_MEMORY


def test_time_is_a_share_and_what_was_not_spent_comes_back() -> None:
    clock = Clock()
    admission = Admission(MEMORY, LEASE_S, SHARE, clock)
    assert admission.admit(1, SHARE * BURST_S + 1.0) == ADMITTED, "a long one may overdraw"
    clock.now += 1.9
    assert admission.admit(1, 0.01) == NO_TIME
    clock.now += 0.2
    assert admission.admit(1, 0.5) == ADMITTED
    assert admission.admit(1, 0.5) == NO_TIME
    admission.end(1, made=True, unspent_s=0.5)
    assert admission.admit(1, 0.5) == ADMITTED
    clock.now += 100
    found = [admission.admit(1, SHARE * BURST_S) for _ in range(2)]
    assert found == [ADMITTED, NO_TIME], "of a quiet second is saved up, and no more"


@given(
    wishes=st.lists(
        st.tuples(st.floats(0, 0.2), st.integers(1, 700), st.floats(0.001, 0.2), st.booleans()), max_size=200
    )
)
def test_whoever_floods_gets_no_more_than_both_bounds(wishes: list[tuple[float, int, float, bool]]) -> None:
    """Rate x lease x bytes, over every window of a lease; and seconds spent, over the whole of it."""
    clock, spent, longest, held = Clock(), 0.0, 0.0, []
    begun, admission = clock.now, Admission(MEMORY, LEASE_S, SHARE, clock)
    for wait, size, seconds, made in wishes:
        clock.now += wait
        if admission.admit(size, seconds) == ADMITTED:
            spent, longest = spent + seconds, max(longest, seconds)
            admission.end(size, made, 0.0)
            held += [(clock.now, size)] if made else []
        assert sum(bytes for since, bytes in held if clock.now < since + LEASE_S) <= MEMORY
    assert spent <= SHARE * (clock.now - begun + BURST_S) + longest + 1e-9
