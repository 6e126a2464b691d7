"""Drafts compared with what is in force, in a process that is kept up to date with it.

To send all documents and to compile them takes as long as there are many. So it is done once, before anybody asks, and
from then on the process gets what has changed.
"""

import pickle
from collections.abc import Mapping

import msgspec

from policy import Key
from streaming.console.comparison_program import Compared, ComparisonJob, LiveDocuments, LiveFact
from streaming.console.past_requests import PastRequest
from streaming.console.records import Records
from streaming.console.sandbox import DraftFailed, Sandbox
from streaming.settings import Settings
from streaming.snapshots.at_offsets import DocumentLog
from streaming.snapshots.documents import key_of
from streaming.topics import Offsets

COMPARISON_PROGRAM = "streaming.console.comparison_program"
COMPARISON_SECONDS, LIVE_SECONDS = 10.0, 60.0  # for a draft, and for all documents
REQUEST_SECONDS = 1.0  # in which requests are decided by both; each is finished
MOST_LIVE = 64 << 20  # bytes of documents in force


class Sent(msgspec.Struct, frozen=True):
    """What the process has of a system: the offset of each policy document, and up to which offset facts."""

    key: str = ""
    policies: Mapping[Key, int] = {}
    facts_offset: int = -1


class Draft(msgspec.Struct, frozen=True):
    """Documents to be put in place of others of a system. `prune`: those are all that there would be."""

    system: str
    documents: str
    prune: bool = False


class Comparisons:
    """One at a time. `sandbox`: of one process that runs `COMPARISON_PROGRAM`.

    Its methods raise KafkaException and TimeoutError; NoLongerKnown; DraftRefused and DraftFailed.
    """

    def __init__(self, settings: Settings, records: Records, sandbox: Sandbox) -> None:
        self._topics, self._records, self._sandbox = settings.topics, records, sandbox
        self._sent: dict[str, Sent] = {}  # by system

    def prepare(self, system: str) -> None:
        """Have the process take in what is in force."""
        self._ask(ComparisonJob(self._key(self._records.documents(), system), system, None))

    def compare(self, draft: Draft) -> tuple[Compared, list[PastRequest]]:
        """What a draft changes, and the requests that were decided by both."""
        requests = self._records.newest_requests(draft.system.__eq__)
        asked = tuple((past.asked, past.trust) for past in requests)
        key = self._key(self._records.documents(), draft.system)
        job = ComparisonJob(key, draft.system, draft.documents, asked, draft.prune, seconds=REQUEST_SECONDS)
        return self._ask(job), requests

    def _ask(self, job: ComparisonJob) -> Compared:
        result = self._sandbox.ask(job)
        if result.get("needs_live"):
            live = self._live(self._records.documents(), job.system, str(result["since"]))
            result = self._sandbox.ask(msgspec.structs.replace(job, key=live.key, live=live), LIVE_SECONDS)
        return msgspec.convert(result, Compared)

    def _newest(self, log: DocumentLog, system: str) -> Offsets:
        topic = self._topics.policy_topics()[system]
        return {topic: {"0": log.end(topic) - 1}}

    def _key(self, log: DocumentLog, system: str) -> str:
        """A key of the documents in force of a system, equal for equal ones."""
        return f"{system} {log.newest_records(self._newest(log, system))} {log.end(self._topics.facts)}"

    def _live(self, log: DocumentLog, system: str, since: str) -> LiveDocuments:
        """What the process lacks, which says that it has the documents of a key. Raises DraftFailed for too many."""
        offsets, key = self._newest(log, system), self._key(log, system)
        named = ((key_of(record.key, None), record) for record in log.records(self._topics.facts))
        facts = [(name, record) for name, record in named if name is not None and name.system == system]
        written = (*log.documents_at(offsets).values(), *(record for _, record in facts))
        if sum(len(record.value) for record in written) > MOST_LIVE:
            raise DraftFailed(f"more than {MOST_LIVE >> 20} MiB of documents are in force: use lockkeeper replay")
        sent = self._sent.get(system, Sent())
        if sent.key != since:
            sent = Sent()
        histories = log.histories_at(offsets)
        policies = {name: history.newest.order for name, history in histories.items()}
        self._sent[system] = Sent(key, policies, max((record.offset for _, record in facts), default=-1))
        return LiveDocuments(
            key,
            tuple(
                pickle.dumps(histories[name]) for name, order in policies.items() if sent.policies.get(name) != order
            ),
            sent.key,
            tuple(name for name in sent.policies if name not in policies),
            tuple(
                LiveFact(name, record.value, record.at, record.offset, record.since)
                for name, record in facts
                if record.offset > sent.facts_offset
            ),
            *log.facts_known(),
        )
