"""Drafts compared with what is in force, in a process that is kept up to date with it.

To send all documents and to compile them takes as long as there are many. So it is done once, before anybody asks, and
from then on the process gets what has changed.
"""

import pickle
from collections.abc import Mapping

import msgspec

from policy import Key
from streaming.console.comparison_program import (
    Compared,
    ComparisonJob,
    LiveDocuments,
    LiveFact,
)
from streaming.console.comparison_program import PastRequest as AskedRequest
from streaming.console.past_requests import PastRequest
from streaming.console.records import DocumentsInForce, Records
from streaming.console.sandbox import DraftFailed, Sandbox
from streaming.snapshots.documents import DocumentRecord

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

    def __init__(self, records: Records, sandbox: Sandbox) -> None:
        self._records, self._sandbox = records, sandbox
        self._sent: dict[str, Sent] = {}  # by system

    def prepare(self, system: str) -> None:
        """Have the process take in what is in force."""
        self._ask(ComparisonJob(self._records.live_key(system), system, None))

    def compare(self, draft: Draft) -> tuple[Compared, list[PastRequest]]:
        """What a draft changes, and the requests that were decided by both."""
        requests = self._records.newest_requests(draft.system.__eq__)
        asked = tuple(AskedRequest(past.asked, tuple(past.trust)) for past in requests)
        key = self._records.live_key(draft.system)
        job = ComparisonJob(key, draft.system, draft.documents, asked, draft.prune, seconds=REQUEST_SECONDS)
        return self._ask(job), requests

    def _ask(self, job: ComparisonJob) -> Compared:
        result = self._sandbox.ask(job)
        if result.get("needs_live"):
            live = self._live(self._records.live_documents(job.system), job.system, str(result["since"]))
            result = self._sandbox.ask(msgspec.structs.replace(job, key=live.key, live=live), LIVE_SECONDS)
        return msgspec.convert(result, Compared)

    def _live(self, in_force: DocumentsInForce, system: str, since: str) -> LiveDocuments:
        """What the process lacks, which says that it has the documents of a key. Raises DraftFailed for too many."""
        if in_force.size > MOST_LIVE:
            raise DraftFailed(f"more than {MOST_LIVE >> 20} MiB of documents are in force: use lockkeeper replay")
        sent = self._sent.get(system, Sent())
        if sent.key != since:
            sent = Sent()
        policies = {key: history.newest.order for key, history in in_force.policies.items()}
        self._sent[system] = Sent(
            in_force.key, policies, max((record.offset for _, record in in_force.facts), default=-1)
        )
        return LiveDocuments(
            in_force.key,
            tuple(
                pickle.dumps(history)
                for key, history in in_force.policies.items()
                if sent.policies.get(key) != policies[key]
            ),
            sent.key,
            tuple(key for key in sent.policies if key not in policies),
            tuple(_fact(key, record) for key, record in in_force.facts if record.offset > sent.facts_offset),
            in_force.facts_held_after,
            in_force.no_facts_before,
        )


def _fact(key: Key, record: DocumentRecord) -> LiveFact:
    return LiveFact(key, record.value, record.at, record.offset, record.since)
