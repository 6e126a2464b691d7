"""Publishing policies from a program: checked first, then all in one transaction, or none."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from policy import Key, Located, Place, read_documents, refusals
from streaming.client.connection import Connection, connection_to, describe
from streaming.kafka.authorship import Authorship
from streaming.kafka.committed import find_key
from streaming.kafka.publish import PublishFailed, publish
from streaming.topics import Offsets


class PolicyPublisher:
    """Publishes policy documents. What it returns goes into `authorize(…, min_policy_offsets=…)`.

    `job_name`: that of the job's settings. Of two that publish under one name at the same moment, one waits.
    """

    def __init__(self, connection: Connection | str = "localhost:9092", job_name: str = "lockkeeper") -> None:
        self._connection = connection_to(connection)
        self._settings = self._connection.settings(job_name=job_name)

    def __repr__(self) -> str:
        return f"PolicyPublisher({self._connection!r})"

    def publish(
        self,
        documents: Iterable[Mapping[str, Any]],
        deletions: Iterable[str] = (),
        *,
        author: str = "",
        commit: str = "",
        reason: str = "",
    ) -> Offsets:
        """Write documents, and delete those whose `system/kind/name` is given, all in one transaction.

        `author`, `commit`, `reason`: what `lockkeeper policy log` shows of this change, as claims.
        Once it returns, no request is decided under older ones. Returns the last offset written, by topic and
        partition. Raises PublishFailed: nothing was published, and why, document by document.
        """
        placed = [Located(Place("documents", number=at), document) for at, document in enumerate(documents, 1)]
        authorship = Authorship(author=author, commit=commit, reason=reason)
        return self._publish(placed, [_key(text) for text in deletions], authorship)

    def publish_files(self, path: Path, *, author: str = "", commit: str = "", reason: str = "") -> Offsets:
        """Write the documents in a file or folder: as `publish`, and FilesRefused for files that cannot be read."""
        return self._publish(read_documents(path), [], Authorship(author=author, commit=commit, reason=reason))

    def _publish(self, documents: Sequence[Located], deletions: Sequence[Key], authorship: Authorship) -> Offsets:
        if errors := refusals(documents, self._settings.limits.document):
            raise PublishFailed("\n".join(["nothing was published, because of:", *errors]))
        try:
            return publish(self._settings, [document.value for document in documents], deletions, authorship)
        except KafkaException as error:
            raise PublishFailed(self._connection.scrub(describe(error))) from None  # its cause may hold a secret


def _key(text: str) -> Key:
    key = find_key(text)
    if key is None:
        raise PublishFailed(f"{text}: write SYSTEM/KIND/NAME, such as lenses6/Role/topic-readers")
    return key
