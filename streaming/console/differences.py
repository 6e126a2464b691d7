"""The differences of two snapshots as pages list them, with who gains and loses by each."""

import msgspec

from policy import Snapshot
from policy.analysis import effects


class ShownDifference(msgspec.Struct, frozen=True):
    """A grant, membership or fact that comes, goes or changes. `widens`: more may get through than before."""

    sign: str
    text: str
    document: str
    widens: bool
    gain: tuple[str, ...] = ()
    lose: tuple[str, ...] = ()


def differences_in(system: str, before: Snapshot, after: Snapshot) -> list[ShownDifference]:
    """Those of one system."""
    return [
        ShownDifference(
            concerned.difference.sign,
            concerned.difference.text,
            concerned.difference.document,
            concerned.difference.widens,
            concerned.gain,
            concerned.lose,
        )
        for concerned in effects(before, after)
        if concerned.difference.system == system
    ]
