"""`--expect` of `policy apply | delete`: nothing is published unless what is live is what its author has seen."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.failure import Failure

if TYPE_CHECKING:
    from streaming.settings import Settings

VERSION = "sha256:"
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="VERSION",
        help="Publish nothing unless this is live: a policy version (sha256:…), or the newest change of these systems.",
    ),
]


def documents_read(settings: "Settings", expect: str | None) -> Sequence[str]:
    """The topics that a policy version is of: those of all documents."""
    return settings.topics.documents if expect is not None and expect.startswith(VERSION) else ()


def check_expected(settings: "Settings", systems: Collection[str], expect: str | None) -> None:
    """Raise Failure unless `expect` is None, the live policy version, or the newest change of these systems."""
    if expect is None:
        return
    from streaming.snapshots.at_offsets import read_document_log

    is_version = expect.startswith(VERSION)
    live = read_document_log(settings).newest().version if is_version else _newest_change(settings, systems)
    if live != expect:
        raise Failure(f"nothing was published: {live or 'no change'} is live, not {expect}. Compare, then try again")


def _newest_change(settings: "Settings", systems: Collection[str]) -> str:
    """The change that the newest record of these systems' topics is of; "" for none. Raises Failure.

    The publisher chooses the id, and another one may choose it again: its documents would pass for those that were
    seen. No two transactions have records that follow each other, as a marker is between them (KIP-98).
    """
    from streaming.kafka.authorship import authorship_of
    from streaming.kafka.committed import committed_records
    from streaming.records.change import is_job_id, job_id

    by_system = settings.topics.policy_topics()
    topics, every_topic = [by_system[system] for system in systems], frozenset(by_system.values())
    last, runs = dict[str, tuple[int, str]](), Counter[tuple[str, str]]()
    times = dict[str, int]()
    for message in committed_records(settings, topics):
        topic, offset = str(message.topic()), message.offset() or 0
        claimed = authorship_of(message.headers()).change
        before, id_ = last.get(topic, (-1, ""))
        named = bool(claimed) and not is_job_id(claimed, every_topic)
        follows = offset == before + 1 and (id_ == claimed if named else is_job_id(id_, every_topic))
        if not follows:
            id_ = claimed if named else job_id(topic, offset)
            runs[topic, id_] += 1
        last[topic], times[topic] = (offset, id_), message.timestamp()[1]
    # Of a topic its last record is the newest: the clocks of two leaders differ.
    newest = last[max(times, key=lambda topic: times[topic])][1] if times else ""
    if any(count > 1 for (_, id_), count in runs.items() if id_ == newest):
        raise Failure(
            f"nothing was published: several changes have the id {newest}. Compare, and expect a policy version"
        )
    return newest
