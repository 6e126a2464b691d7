"""How many requests, or searches, are answered at once, of all callers and of each."""

from collections import Counter

from streaming.serve.connections import Refusals

MOST_REQUESTS = 256  # of a process: each may hold a body of `limits.record_in`, together 256 MiB by default
SHARE = 3
"""A caller has at most so many times the requests that are still free: alone three quarters of all, with another one
three sevenths each, so that there is always room for a further one (the dynamic thresholds of shared buffers; Choudhury
and Hahne, 1998)."""


class Admission:
    """Counts the requests under way. `most`: of all callers. In the loop's thread."""

    def __init__(self, most: int) -> None:
        self._most, self._under_way = most, 0
        self._callers: Counter[str] = Counter()
        self.refusals = Refusals()

    def begin(self) -> None:
        """A request has begun; its caller is not known yet."""
        self._under_way += 1

    def has_room(self) -> bool:
        """Whether there is room for the request that has begun."""
        if self._under_way <= self._most:
            return True
        self.refusals.refused()
        return False

    def admit(self, caller: str) -> bool:
        """Whether its caller has room for it. Without callers, "", all share one."""
        own = self._callers[caller]
        if caller and own and own >= SHARE * (self._most - self._under_way):
            return False
        self._callers[caller] += 1
        return True

    def end(self, caller: str | None) -> None:
        """A request is answered. `caller`: None where it was not admitted."""
        self._under_way -= 1
        if caller is None:
            return
        self.refusals.served()
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]
