"""What belongs to no single system, such as the state of the job, without the topics of systems that are not seen."""

import msgspec

from streaming.console.viewer import Viewer
from streaming.decision_log.status import GroupStatus, Status
from streaming.settings import Settings

FOR_OPERATORS = "something cannot be read: the console's log says what, and `lockkeeper status` may, too"


class UnseenTopics:
    """The policy topics of systems that a viewer may not see: their names and offsets say that and how they change."""

    def __init__(self, settings: Settings) -> None:
        self._topics = settings.topics.policy_topics()

    def of(self, viewer: Viewer) -> frozenset[str]:
        """Their names."""
        return frozenset(topic for system, topic in self._topics.items() if not viewer.may_see(system))

    def text_for(self, viewer: Viewer, text: str) -> str:
        """A text about Kafka; another one where it names such a topic, as missing permissions do."""
        return FOR_OPERATORS if self._names(self.of(viewer), text) else text

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
    def _names(topics: frozenset[str], text: str) -> bool:
        return any(topic in text for topic in topics)


def _without(group: GroupStatus, topics: frozenset[str]) -> GroupStatus:
    return msgspec.structs.replace(group, topics=tuple(topic for topic in group.topics if topic.topic not in topics))
