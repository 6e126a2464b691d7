"""A candidate's decisions held against the live ones: counted, and a few differences kept. Runs in the workers."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from policy import Outcome, all_systems
from streaming.ops.tally import OTHER, Compared
from streaming.records.packing import Packed

SAMPLES = 3  # differences of an Arrow batch that are shown


class _Context(msgspec.Struct):
    outcome: Outcome


class _Record(msgspec.Struct):
    id: str
    system: str
    context: _Context


_read = msgspec.json.Decoder(_Record).decode


def compare(live: Packed, candidate: Packed) -> Compared:
    """The decisions of both on the same records, in JSON."""
    counts: Counter[tuple[str, str, str]] = Counter()
    samples: list[tuple[bytes, bytes]] = []
    others = {then.id: (then, other) for then, other in _decisions(candidate)}
    for now, one in _decisions(live):
        then, other = others[now.id]
        system = now.system if now.system in all_systems() else OTHER
        counts[system, now.context.outcome, then.context.outcome] += 1
        if now.context.outcome != then.context.outcome and len(samples) < SAMPLES:
            samples.append((one, other))
    return Compared([(*labels, count) for labels, count in counts.items()], samples)


def _decisions(packed: Packed) -> Iterator[tuple[_Record, bytes]]:
    return ((_read(value), value) for value in packed.decisions())
