"""Records of the access changes topic: a question that was decided lately, and whose answer a change turns.

The key is the subject's id, so that what happens to one subject comes in order.
"""

import hashlib
from typing import Any

import msgspec

from policy import to_text
from policy.analysis import Answer, Turned
from streaming.records.decision import ActionName, Entity
from streaming.records.formats import JSON_HEADERS, Result, shorten, shorten_id
from streaming.records.size_gate import fits, record_size
from streaming.topics import ALWAYS_FITS, Offsets

ID_BYTES = 16
MOST_STATEMENTS = 20  # of an answer; the first by which it is determined
SHORT = 200  # characters of texts, and statements left out, of a record that would be too large


class Statement(msgspec.Struct, frozen=True, omit_defaults=True):
    """A statement that determines an answer. `statement`: None for a document as such."""

    document: str
    statement: int | None = None


class State(msgspec.Struct, frozen=True):
    """An answer, and the statements that determine it."""

    outcome: str
    statements: tuple[Statement, ...] = ()


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """The change of policies, as the changes topic has it. `author`: a claim of the publisher."""

    id: str
    author: str = ""


class AccessChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who may do what now and could not before, or the other way round. `change` None: facts changed, or time passed.

    `context`: as much of the request's as its system is shown. `policy_offsets`, `facts_offset`: from which on `after`
    is the answer.
    """

    id: str
    time: str
    system: str
    subject: Entity
    action: ActionName
    resource: Entity
    context: dict[str, Any] = {}
    before: State
    after: State
    change: Cause | None = None
    policy_version: str
    policy_offsets: Offsets
    facts_offset: int


class Moment(msgspec.Struct, frozen=True):
    """Since when the answers are others: `at` (ms), and what was in force from then on."""

    at: int
    policy_version: str
    policy_offsets: Offsets
    facts_offset: int
    change: Cause | None = None


def access_change(turned: Turned, since: Moment) -> AccessChange:
    """The record of a question. Its id is the same for the same question at the same offsets and time."""
    request = turned.question.request
    resource = Entity(request.resource.type, request.resource.id, request.resource.properties)
    moment = msgspec.json.encode((since.policy_offsets, since.facts_offset, since.at), order="sorted")
    hashed = hashlib.blake2b(turned.question.key + b"\0" + moment, digest_size=ID_BYTES)
    return AccessChange(
        id=hashed.hexdigest(),
        time=to_text(since.at),
        system=request.system,
        subject=Entity(request.subject.type, request.subject.id),
        action=ActionName(request.action.name),
        resource=resource,
        context=request.context,
        before=_state(turned.before),
        after=_state(turned.after),
        change=since.change,
        policy_version=since.policy_version,
        policy_offsets=since.policy_offsets,
        facts_offset=since.facts_offset,
    )


def _state(answer: Answer) -> State:
    statements = (
        Statement(statement.document, statement.statement) for statement in answer.statements[:MOST_STATEMENTS]
    )
    return State(answer.outcome, tuple(statements))


def access_change_record(topic: str, change: AccessChange, most_bytes: int) -> Result:
    """The record. One that is too large has no context, properties and statements, and long names are shortened."""
    key, value = shorten_id(change.subject.id).encode(), msgspec.json.encode(change)
    if not fits(record_size(key, value, JSON_HEADERS), max(most_bytes, ALWAYS_FITS)):
        value = msgspec.json.encode(_shortened(change))
    return topic, key, value, JSON_HEADERS


def _shortened(change: AccessChange) -> AccessChange:
    entities = (
        Entity(shorten(entity.type, SHORT), shorten_id(entity.id)) for entity in (change.subject, change.resource)
    )
    subject, resource = entities
    return msgspec.structs.replace(
        change,
        subject=subject,
        action=ActionName(shorten_id(change.action.name)),
        resource=resource,
        context={},
        before=State(change.before.outcome),
        after=State(change.after.outcome),
    )
