"""What workers return for an Arrow batch: packed records to write, and a side output for the driver."""

import msgspec
from pyspark.sql.types import BinaryType, StructField, StructType

from streaming.ops.tally import Compared, Tally

# As a text it would be parsed, in Java, with every batch.
SCHEMA = StructType([StructField("packed", BinaryType()), StructField("side", BinaryType())])
PACKED, SIDE = range(2)


class Decided(msgspec.Struct, array_like=True, frozen=True):
    """Which records of an Arrow batch are decided: of a partition those from offset `first` up to, without it, `end`.

    `stopped`: the task's budget is used up, and from `end` on it decides nothing. `share`: what it has used of it.
    """

    partition: int
    first: int
    end: int
    stopped: bool
    share: float


class SideOutput(msgspec.Struct, array_like=True, frozen=True):
    """What a worker reports of an Arrow batch beside the records to write.

    `needed`: ids of Avro schemas that are not known yet; while there are any, nothing of the evaluation may be used.
    `compared`: what a candidate says. `decisions`: the records of these, if each is to be logged. `moments`: some (ms)
    under whose policies audit events had to be evaluated, and no snapshot holds these.
    """

    tally: Tally
    needed: list[int]
    compared: Compared
    decisions: list[bytes]
    moments: list[int]
    decided: Decided = Decided(0, 0, 0, False, 0.0)
