"""How a candidate's decisions compare with the live ones: what workers count, and the driver adds up."""

import msgspec


class Compared(msgspec.Struct, array_like=True, frozen=True):
    """How many decisions of an Arrow batch there were by system, live and candidate outcome, and some that differ.

    `samples`: pairs of decision records, the live one first.
    """

    counts: list[tuple[str, str, str, int]]
    samples: list[tuple[bytes, bytes]]


NOTHING = Compared([], [])
