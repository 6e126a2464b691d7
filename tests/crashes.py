"""What a test process was at when it ended by itself counts as failed, also when another process then passes it.

Xdist's scheduler by file gives the whole file to the next process, where a pass takes the test off the list that
`pytest --last-failed` runs: nothing was left to run again, and that was an error of its own (5).
"""

from typing import Any

import pytest

LAST_FAILED = "cache/lastfailed"  # of pytest's plugin of that name
CRASHED = pytest.StashKey[list[str]]()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, sched: Any) -> None:
    """Called by xdist in the process that hands out the tests."""
    sched.config.stash.setdefault(CRASHED, []).append(crashitem)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pytest's own plugin has written the list when this is called."""
    crashed, cache = session.config.stash.get(CRASHED, []), getattr(session.config, "cache", None)
    if crashed and cache is not None:  # None with `-p no:cacheprovider`
        cache.set(LAST_FAILED, {**cache.get(LAST_FAILED, {}), **dict.fromkeys(crashed, True)})
