"""Eight threads that are all exhausted together, each with garbage of its own. The simple designs fail here by the
thousand; here nobody fails, nobody starves, and nobody collects again and again."""

from __future__ import annotations

import pytest

from pressure_tools import Counters, make_garbage, repeat, run_threads, testing

pytestmark = pytest.mark.pressure

MOST_COLLECTIONS = 4
SECOND_NS = 1_000_000_000


@pytest.mark.scenario(5, 23)
def test_eight_threads_many_times_in_a_row(counters: Counters, rounds: int) -> None:
    """No request runs more than four collections, or is under pressure for longer than those and the one that it found
    in flight can take, and a second: a collection takes tens of milliseconds, but more on a busy machine."""
    for _ in range(rounds):
        run_threads(8, lambda: repeat(125, make_garbage))
    counters.check_all_rescued()
    assert counters["events"] >= rounds
    longest_ns, most_collections = testing.request_maxima(0)
    assert 0 < most_collections <= MOST_COLLECTIONS
    assert 0 < longest_ns < SECOND_NS + (MOST_COLLECTIONS + 1) * counters["collection_max_ns"]
