"""Eight threads that are all exhausted together, each with garbage of its own. The simple designs fail here by the
thousand; here nobody fails, nobody starves, and nobody collects again and again."""

from __future__ import annotations

import pytest

from pressure_tools import Counters, make_garbage, memory, repeat, run_threads, testing

pytestmark = pytest.mark.pressure

MOST_COLLECTIONS = 4
TIMEOUT_MS = 60_000


@pytest.mark.scenario(5, 23)
def test_eight_threads_many_times_in_a_row(counters: Counters, rounds: int) -> None:
    """No request runs more than four collections, however the threads are scheduled: after its first fruitless full one
    (the second, with the young rung) it is registered, and what is freed goes to the oldest registered request first.
    How long it is under pressure depends on the machine, so that is bounded by its deadline alone, a generous one."""
    memory.set_pressure_policy(timeout_ms=TIMEOUT_MS)
    for _ in range(rounds):
        run_threads(8, lambda: repeat(125, make_garbage))
    counters.check_all_rescued()
    assert counters["events"] >= rounds
    longest_ns, most_collections = testing.request_maxima(0)
    assert 0 < most_collections <= MOST_COLLECTIONS
    assert 0 < longest_ns < TIMEOUT_MS * 1_000_000
    assert counters["collections.skipped.timeout"] == 0
