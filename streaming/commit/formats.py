"""The form of what a job keeps in Kafka for its next start, and what is said of a form from the future.

Written since the first change of this file: what has no format number has format 1. A change that an older version
would misread raises `FORMAT`; one that it would only leave out does not.
"""

import contextlib
from collections.abc import Iterable

import msgspec
from confluent_kafka import TopicPartition

from streaming.errors import CannotStart
from streaming.kafka.clients import SECONDS, Partition, group_observer, once_coordinated
from streaming.settings import Settings

FORMAT = 1
"""Of the metadata of committed offsets, and of the history topic's records."""


class _Form(msgspec.Struct):
    format: int = 1


def check_format(found: int, place: str) -> None:
    """Raise CannotStart when what stands at `place` was written in a form that this version does not know."""
    if found > FORMAT:
        raise CannotStart(
            f"{place} is of form {found}, written by a newer lockkeeper; this version reads forms up to {FORMAT}. "
            "Start that newer version, or one after it. To go back for good, see docs/pages/upgrading.md"
        )


def form_of(metadata: str | None) -> int:
    """The format of commit metadata; 1 for metadata that lockkeeper did not write."""
    try:
        return msgspec.json.decode(metadata or "", type=_Form).format
    except msgspec.DecodeError:
        return 1


def check_committed_formats(settings: Settings, partitions: Iterable[Partition]) -> None:
    """Before any instance is fenced: raise CannotStart when a newer version has committed offsets of the job's group.

    Asked by a consumer: librdkafka's admin client dies (SIGSEGV) where the group's coordinator is not ready yet.
    """
    group, asked = settings.job_name, [TopicPartition(*partition) for partition in partitions]
    with contextlib.closing(group_observer(settings)) as consumer:
        for tp in once_coordinated(lambda: consumer.committed(asked, timeout=SECONDS)):
            check_format(form_of(tp.metadata), f"the committed offset of {tp.topic}-{tp.partition} in group {group!r}")
