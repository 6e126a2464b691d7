"""What untrusted clients send leaves no more in a process than its caches may hold."""

import subprocess
import sys

import pytest

from policy.core.caching import BUDGET, Budget, Cache
from tests.stream.memory_process import SCENARIOS

SLOW = ["many_groups", "roles_elsewhere"]
QUICK = sorted(SCENARIOS.keys() - set(SLOW))
HELD_MIB = 2
BESIDE_MIB = 2  # compiled expressions, columns of the last batch and the like


@pytest.mark.long
@pytest.mark.parametrize("scenarios", [QUICK, SLOW], ids=["quick", "slow"])
def test_requests_with_distinct_groups_and_names_leave_no_more_than_the_caches_may_hold(scenarios: list[str]) -> None:
    """Large ones (40 of 0.9 MB), and many small ones: much more of them than fits."""
    command = [sys.executable, "-m", "tests.stream.memory_process", str(HELD_MIB), *scenarios]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    left = {name: float(mib) for name, mib in map(str.split, ran.stdout.splitlines())}
    assert left.keys() == set(scenarios)
    assert {name: mib for name, mib in left.items() if mib > HELD_MIB + BESIDE_MIB} == {}


def test_caches_are_emptied_together_when_they_hold_too_much() -> None:
    one, other = Cache[str, str](), Cache[str, str]()
    before, BUDGET.most = BUDGET.most, 10_000
    try:
        one.hold("a", "b", 4_000)
        other.hold("a", "b", 4_000)
        other.hold("c", "d", 4_000)
    finally:
        BUDGET.most = before
    assert (dict(one), dict(other)) == ({}, {"c": "d"})


def test_a_budget_keeps_no_cache_alive() -> None:
    budget, emptied = Budget(10), list[str]()

    class Noted:
        def clear(self) -> None:
            emptied.append("once")

    kept, gone = Noted(), Noted()
    budget.join(kept)
    budget.join(gone)
    del gone
    budget.spend(11)
    assert emptied == ["once"]
