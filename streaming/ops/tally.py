"""What a worker counts of the records it decides.

The driver adds it up once they are committed, so each counts once. Per record it costs one addition to a dictionary;
all else is per Arrow batch.
"""

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from policy import all_systems

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


OTHER = "other"
"""The label of systems that lockkeeper does not know; untrusted clients choose their names."""

TRACES = 8  # of an Arrow batch are kept
LOOKED_AT = 64  # records, for those traces
TRACEPARENT = "traceparent"

Label = str
"""System and outcome, as they are counted: `lenses6 allow`. Made when an answer is, not with each record."""

DEAD: Label = "dead letter"
LIFECYCLE = "lifecycle"
"""The outcome of an audit event that is no access, such as a login: there is nothing to evaluate."""

UNKNOWN = "unknown"
"""The outcome of an audit event from a time whose policies or facts are not known any more."""

AGREES, CONTRADICTS, UNVERIFIED = "agrees", "contradicts", "unverified"
"""Of requests that were answered elsewhere: how the job's decision compares with the answer."""

Counts = defaultdict[Label, int]


def label(system: str, outcome: str) -> Label:
    """What a decision or verdict is counted as."""
    return sys.intern(f"{system if system in all_systems() else OTHER} {outcome}")


class Tally(msgspec.Struct, array_like=True, frozen=True):
    """Counts of one Arrow batch, whose records all come from one topic.

    `outcomes`: of decisions, or of verdicts: system, outcome, how many. `ages`: how old records were by the batch's
    clock (`now` of its task), ms, with how many of each in `aged`. `traces`: the `traceparent` of a few.
    """

    topic: str
    outcomes: list[tuple[str, str, int]]
    dead_letters: int
    ages: list[int]
    aged: list[int]
    traces: list[str]


def no_counts() -> Counts:
    """Counts to begin with."""
    return defaultdict(int)


def tally(topic: str, now: int, counts: Counts, times: "npt.NDArray[np.int64]", headers: Iterable[Any]) -> Tally:
    """The tally of an Arrow batch. `times`: the broker's, ms; `headers`: of the records, as lists or None."""
    import numpy as np  # which only the job has

    ages, aged = np.unique(now - times, return_counts=True)
    listed = ((key.split(), count) for key, count in counts.items() if key != DEAD)
    outcomes = [(system, outcome, count) for (system, outcome), count in listed]
    return Tally(topic, outcomes, counts[DEAD], ages.tolist(), aged.tolist(), _traces(headers))


def _traces(headers: Iterable[Any]) -> list[str]:
    """The trace parents among the first records, a few of them."""
    headers_ = (header for record in itertools.islice(headers, LOOKED_AT) for header in record or ())
    values = (header["value"] for header in headers_ if header["key"] == TRACEPARENT and header["value"])
    return [value.decode("ascii", "replace")[:64] for value in itertools.islice(values, TRACES)]


class Compiled(msgspec.Struct, frozen=True):
    """A snapshot that was compiled: how long it took (s), and what it is made of, by system.

    `newest`: when the newest version among the documents was published, ms; 0: there are none.
    """

    seconds: float
    in_force: Mapping[str, int]
    refused: Mapping[str, int]
    grants: Mapping[str, int]
    superseded: int
    newest: int
