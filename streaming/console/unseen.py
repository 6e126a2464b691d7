"""What belongs to no single system, such as the state of the job, without the topics of systems that are not seen."""

from collections.abc import Iterable

import msgspec

from streaming.console.viewer import Viewer
from streaming.decision_log.status import GroupStatus, Status
from streaming.settings import Settings

FOR_OPERATORS = "something is missing that is of no system that you see; ask the operators"


class UnseenTopics:
    """The policy topics of systems that a viewer may not see: their names and offsets say that and how they change."""

    def __init__(self, settings: Settings) -> None:
        self._topics = settings.topics.policy_topics()

    def of(self, viewer: Viewer) -> frozenset[str]:
        """Their names."""
        return frozenset(topic for system, topic in self._topics.items() if not viewer.may_see(system))

    def text_for(self, viewer: Viewer, text: str) -> str:
        """A text about Kafka and what it holds; another one where it names such a topic, or a document on it.

        A decision rests on the offsets of all policy topics: what is no longer known of it may be another system's.
        """
        documents = (f"{system}/" for system in self._topics if not viewer.may_see(system))
        return FOR_OPERATORS if self._names((*self.of(viewer), *documents), text) else text

    def status_for(self, viewer: Viewer, status: Status) -> Status:
        """A status without such topics: records of theirs that wait do not count."""
        unseen = self.of(viewer)
        return msgspec.structs.replace(
            status,
            job=_without(status.job, unseen),
            monitor=_without(status.monitor, unseen),
            problems=tuple(problem for problem in status.problems if not self._names(unseen, problem)),
        )

    @staticmethod
    def _names(names: Iterable[str], text: str) -> bool:
        return any(name in text for name in names)


def _without(group: GroupStatus, topics: frozenset[str]) -> GroupStatus:
    return msgspec.structs.replace(group, topics=tuple(topic for topic in group.topics if topic.topic not in topics))
