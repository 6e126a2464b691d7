"""How many examples a property gets: the share that `make test` has time for, and more of them in `make verify`."""

import os


def examples(count: int) -> int:
    """``count`` times LOCKKEEPER_TEST_EXAMPLES (1), at least one."""
    return max(1, round(count * float(os.environ.get("LOCKKEEPER_TEST_EXAMPLES", "1"))))
