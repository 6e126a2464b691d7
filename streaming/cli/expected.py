"""`--expect` of `policy apply | delete`: nothing is published unless what is live is what its author has seen."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import Failure

if TYPE_CHECKING:
    from streaming.settings import Settings

Expect = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="VERSION",
        help="Publish nothing unless this is live: a policy version (sha256:…), or the newest change of these systems.",
    ),
]


def check_expected(settings: "Settings", systems: Collection[str], expect: str | None) -> None:
    """Raise Failure unless `expect` is None, the live policy version, or the newest change of these systems."""
    if expect is None:
        return
    live = _live_version(settings) if expect.startswith("sha256:") else _newest_change(settings, systems)
    if live != expect:
        raise Failure(f"nothing was published: {live or 'no change'} is live, not {expect}. Compare, then try again")


def _live_version(settings: "Settings") -> str:
    from streaming.snapshots.at_offsets import read_document_log

    return read_document_log(settings).newest().version


def _newest_change(settings: "Settings", systems: Collection[str]) -> str:
    """The change that the newest record of these systems' topics names; "" for none."""
    from streaming.kafka.authorship import authorship_of
    from streaming.kafka.committed import committed_records

    topics = settings.topics.policy_topics()
    newest = max(
        committed_records(settings, [topics[system] for system in systems]),
        key=lambda message: (message.timestamp()[1], message.offset()),
        default=None,
    )
    return authorship_of(newest.headers()).change if newest is not None else ""
