"""Of which system an alert is, which decides who sees it; and where it leads."""

import html
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from policy import to_ms
from policy.analysis import Concerned, Difference
from streaming.console.addresses import MOST_TEXT
from streaming.console.alert_pages import _fits as alert_fits
from streaming.console.alerts import Episode, decisions_behind, pieces, seen_by, system_of
from streaming.console.change_pages import FILTERS as CHANGE_FILTERS
from streaming.console.change_pages import MARKS
from streaming.console.change_pages import _row as change_row
from streaming.console.changes import MOST_SHOWN, Changed, Turned, change_at, describe, rollback_command
from streaming.console.changes import seen_by as change_seen_by
from streaming.console.console import LINKS
from streaming.console.documents import MOST_DOCUMENTS
from streaming.console.listing import Listing
from streaming.console.pages import Pages, StaticFiles, link_name
from streaming.console.viewer import EVERYTHING, Viewer
from streaming.decision_log.search import Query
from streaming.history.span import Span
from streaming.records.change import ChangeWidens, DocumentChange, PolicyChange, PolicyState, has_document, read_change
from streaming.records.formats import shorten_id
from streaming.report import Alert
from streaming.snapshots.at_offsets import DocumentLog
from streaming.snapshots.documents import DocumentRecord
from streaming.snapshots.logged import ChangeHistory, LoggedChange
from streaming.snapshots.record_log import Retention
from streaming.topics import TopicNames

TOPICS = {"policies.lenses6": "lenses6", "policies.cdap": "cdap"}
DECISION = "7V5yL0WvQ2aS0yQmHhV1Pw-0-17"


def _episode(kind: str = "denial-burst", *evidence: Any, subject: Any = "user:dana") -> Episode:
    alert = Alert(
        id="a", kind=kind, severity="high", time="2026-11-21T10:00:00Z", subject=subject, evidence=list(evidence)
    )
    return Episode(alert, 2, 1, system_of(alert, TOPICS))


@pytest.mark.parametrize(
    ("evidence", "system"),
    [
        ([{"system": "lenses6", "count": 1}, {"what": "x"}], "lenses6"),
        ([{"document": "cdap/Grant/g", "topic": "policies.cdap", "offset": 1}], "cdap"),
        ([{"topic": "policies.lenses6", "offset": 1}], "lenses6"),
        ([{"document": "cdap/Grant/g"}, {"documents": ["cdap/Grant/g", "lenses6/Role/r"]}], ""),
        ([{"document": "cdap/Grant/g", "causes": ["lenses6/Role/r"]}], ""),
        ([{"system": "cdap"}, {"topic": "requests", "offset": 1}], ""),
        ([{"system": 7}, "text", None], ""),
        ([], ""),
    ],
)
def test_an_alert_is_of_a_system_if_all_that_it_names_is(evidence: list[Any], system: str) -> None:
    assert _episode("privilege-escalation", *evidence).system == system


def test_what_is_of_no_system_is_for_those_who_see_all() -> None:
    episodes = [_episode("policy-stale"), _episode("denial-burst", {"system": "cdap"})]
    assert seen_by(EVERYTHING, episodes) == episodes
    assert seen_by(Viewer("a", frozenset({"cdap"})), episodes) == episodes[1:]
    assert seen_by(Viewer("a", frozenset()), episodes) == []


def test_an_episode_leads_to_the_decisions_around_it() -> None:
    extent = {"system": "lenses6", "count": 2, "first": "2026-11-21T10:00:00Z", "last": "2026-11-21T10:01:00Z"}
    fields = parse_qs(urlsplit(decisions_behind(_episode("denial-burst", extent))).query)
    assert fields == {
        "subject": ["user:dana"],
        "system": ["lenses6"],
        "outcome": ["deny"],
        "since": ["2026-11-21T09:55:00.000Z"],
        "until": ["2026-11-21T10:02:00.000Z"],
    }
    assert "outcome" not in decisions_behind(_episode("unauthorized-access", extent))
    for none in (
        _episode("answer-stale", extent),
        _episode("denial-burst", {**extent, "first": "yesterday"}),
        _episode("denial-burst", {**extent, "last": None}),
        _episode("denial-burst"),
        _episode("denial-burst", extent, subject={"a": 1}),
    ):
        assert decisions_behind(none) == ""


def test_a_filter_by_subject_takes_a_pattern_as_that_of_decisions_does() -> None:
    fields = dict.fromkeys(("kind", "severity", "system"), "")
    for text, subject, is_found in (
        ("user:d*", "user:dana", True),
        ("user:e*", "user:dana", False),
        ("user:dana", "user:dana", True),
        ("user:dan", "user:dana", False),
        ("user:*", "user:*", True),
        ("", "user:dana", True),
    ):
        assert alert_fits(_episode(subject=subject), {**fields, "subject": text}) == is_found, text


def test_a_subject_that_alerts_shorten_is_found_by_its_name_and_leads_to_its_decisions() -> None:
    """A page of a decision links to the alerts of its subject by the whole name, which alerts have not."""
    long, other = "user:" + "x" * 1500, "user:" + "x" * 1499 + "y"
    fields = dict.fromkeys(("kind", "severity", "system"), "")
    extent = {"system": "lenses6", "first": "2026-11-21T10:00:00Z", "last": "2026-11-21T10:01:00Z"}
    episode = _episode("denial-burst", extent, subject=shorten_id(long))
    assert [alert_fits(episode, {**fields, "subject": name}) for name in (long, other)] == [True, False]
    query = parse_qs(urlsplit(decisions_behind(episode)).query)
    context = {"outcome": "deny", "request": {"subject": {"id": long}}}
    wanted = Query(Span(0, 1), subject=query["subject"][0], exact="exact" in query)
    assert wanted.fits({"context": context})


def test_evidence_leads_to_the_decision_and_the_record_that_it_names() -> None:
    what = {"time": "2026-11-21T10:00:00Z", "what": f"x: answered allow, decided deny (decision {DECISION})"}
    named, record, other = pieces(
        _episode("answer-contradicted", what, {"topic": "policies.cdap", "offset": 3}, {"offset": "3", "topic": 4})
    )
    assert named.decision_address == f"/decisions/{DECISION}"
    assert (record.topic, record.offset) == ("policies.cdap", 3)
    assert (other.topic, other.offset, other.decision) == ("", -1, "")


CHANGED_AT = to_ms("2026-11-21T10:00:00Z")


def _change(system: str, offset: int, name: str = "changes-1", time: str = "2026-11-21T10:00:00Z") -> LoggedChange:
    documents = (DocumentChange(f"{system}/Role/r", "changed", offset),)
    state = PolicyState({})
    part = PolicyChange(
        id="x", system=system, time=time, before=state, after=state, documents=documents,
        documents_count=1,
    )  # fmt: skip
    return LoggedChange("x", [part], [], name)


def test_a_record_of_a_policy_topic_is_of_one_change() -> None:
    history = ChangeHistory([_change("lenses6", 3, "a"), _change("cdap", 3, "b")])
    topics = {system: topic for topic, system in TOPICS.items()}
    found = [change_at(history, topics, topic, 3, CHANGED_AT) for topic in (*TOPICS, "other")]
    assert [None if one is None else one.name for one in found] == ["a", "b", None]
    assert change_at(history, topics, "policies.cdap", 4, CHANGED_AT) is None


def test_of_a_topic_that_was_re_created_an_alert_is_about_the_change_before_it() -> None:
    """The records of the new one have the same offsets."""
    history = ChangeHistory([_change("cdap", 3, "a"), _change("cdap", 3, "b", "2026-11-22T10:00:00Z")])
    topics, day = {"cdap": "policies.cdap"}, 24 * 3600 * 1000
    found = [change_at(history, topics, "policies.cdap", 3, CHANGED_AT + after) for after in (-day, 1000, day)]
    assert [change.name for change in found if change is not None] == ["b", "a", "b"]


def test_a_viewer_sees_its_part_of_a_change() -> None:
    both = LoggedChange("x", [*_change("lenses6", 1).parts, *_change("cdap", 2).parts], [], "a")
    seen = change_seen_by(Viewer("a", frozenset({"cdap"})), both)
    assert seen is not None
    assert [one.key for one in seen.documents] == ["cdap/Role/r"]
    assert change_seen_by(Viewer("a", frozenset({"streamsets"})), both) is None
    assert [has_document(both.parts, name) for name in ("Role/r", "cdap/Role/r", "r")] == [True, True, False]


def test_the_document_of_a_change_is_found_by_a_pattern_as_names_elsewhere_are() -> None:
    """Else "No change fits" would be said of roles that somebody changed."""
    [part] = _change("cdap", 1).parts
    for pattern, is_found in (("Role/*", True), ("cdap/*", True), ("Group/*", False), ("role/*", False), ("R", False)):
        assert has_document([part], pattern) == is_found, pattern


def test_the_command_that_undoes_a_change_is_one_word_of_a_shell() -> None:
    assert rollback_command(_change("cdap", 1, "changes-1")) == "lockkeeper policy rollback changes-1"
    assert rollback_command(_change("cdap", 1, "a'; rm -rf /")).endswith("""'a'"'"'; rm -rf /'""")


def _widens(system: str, count: int, complete: bool) -> ChangeWidens:
    at = "2026-11-21T10:00:01Z"
    return ChangeWidens(
        id="x", system=system, time=at, changes=("x",), widens=(), widens_count=count, complete=complete
    )


def test_a_change_is_said_to_open_nothing_where_that_is_known_of_all_of_it() -> None:
    both = LoggedChange("x", [*_change("lenses6", 1).parts, *_change("cdap", 2).parts], [], "a")
    for widens, opens in (
        ([], None),
        ([_widens("cdap", 0, True)], None),
        ([_widens("cdap", 0, True), _widens("lenses6", 0, False)], None),
        ([_widens("cdap", 0, True), _widens("lenses6", 0, True)], 0),
        ([_widens("cdap", 3, False)], 3),
    ):
        assert change_row(LoggedChange(both.id, both.parts, widens, both.name))["opens"] == opens, widens


def test_what_changes_open_together_is_not_said_of_one_alone() -> None:
    """What the job reads in one go it compares as one: each author was shown with what the others opened."""
    [part] = _change("cdap", 1).parts
    widens = _widens("cdap", 3, True)
    for ids, others in ((("x",), []), (("x", "other-1", "other-2"), ["other-1", "other-2"])):
        change = LoggedChange("x", [part], [msgspec.structs.replace(widens, changes=ids)], "changes-1")
        listed = _list_of(change)
        assert [text in listed for text in ("with 2 other changes", "with 1 other change")] == [bool(others), False]
        page = _page_of(change, changed=Changed(change, opens=("user:a may read",)))
        assert all(id_ in page.split('id="opens"')[1] for id_ in others)
        assert ("together with" in page) == bool(others)


def test_a_change_that_lists_some_of_its_documents_may_be_of_any() -> None:
    [part] = _change("cdap", 1).parts
    assert not has_document([part], "Role/other")
    assert has_document([msgspec.structs.replace(part, documents_count=1001)], "Role/other")


def test_documents_of_a_change_that_are_not_compared_are_a_list() -> None:
    """Each of a thousand had a heading, a link and the same sentence below the one before."""
    [part] = _change("cdap", 1).parts
    documents = tuple(DocumentChange(f"cdap/Grant/g{number}", "added", number) for number in range(100))
    whole = msgspec.structs.replace(part, documents=documents, documents_count=100)
    log = DocumentLog(TopicNames(), 1 << 20, 0)
    changed = describe(LoggedChange("x", [whole], [], "changes-1"), log, TopicNames().policy_topics())
    page = _page_of(changed.change, changed=changed).split('id="documents"')[1].split("</section>")[0]
    assert all(f"cdap/Grant/g{number}<" in page for number in range(100))
    assert page.count("<h3>") == MOST_DOCUMENTS
    assert page.count("<li>") == 100 - MOST_DOCUMENTS
    assert page.count(f"first {MOST_DOCUMENTS}") == 1


def test_differences_that_are_not_shown_are_counted() -> None:
    """Of a long change the first 200 stood there as if they were all."""
    topics, shown = TopicNames().policy_topics(), {}
    for count in (10, MOST_SHOWN + 50):
        kept = dict.fromkeys(topics.values(), Retention(1 << 40))
        log = DocumentLog(TopicNames(), 1 << 20, 0, kept)
        for number in range(count):
            spec = {"user": f"u{number}", "entity": f"dataset:ns.d{number}", "privileges": ["ADMIN"]}
            value = msgspec.json.encode({"system": "cdap", "kind": "Grant", "name": f"g{number}", "spec": spec})
            log.add(DocumentRecord(topics["cdap"], f"Grant/g{number}".encode(), value, number, number))
        log.read_to({(topic, 0): count if topic == topics["cdap"] else 0 for topic in log.topics})
        [part] = _change("cdap", 1).parts
        sides = (PolicyState({topics["cdap"]: {"0": offset}}, "sha256:1") for offset in (-1, count - 1))
        whole = msgspec.structs.replace(part, **dict(zip(("before", "after"), sides, strict=True)))
        changed = describe(LoggedChange("x", [whole], [_widens("cdap", 0, True)], "changes-1"), log, topics)
        shown[count] = _page_of(changed.change, changed=changed)
        assert changed.unknown == ()
    gained = {count: page.split('id="gave"')[1].split("</section>")[0] for count, page in shown.items()}
    assert "The first" not in gained[10]
    rows = gained[MOST_SHOWN + 50].count("<tr") - 1
    assert (rows, rows < MOST_SHOWN + 50) == (MOST_SHOWN, True)
    [total] = re.findall(rf"The first {MOST_SHOWN} of (\d+) differences", gained[MOST_SHOWN + 50])
    assert int(total) >= MOST_SHOWN + 50
    assert all("This is not all" not in page for page in shown.values()), "what it opens is known whole"


def _list_of(change: LoggedChange) -> str:
    listing = Listing([change]).values(dict.fromkeys(CHANGE_FILTERS, ""), change_row)
    values = {"here": "/changes", "viewer": EVERYTHING, "systems": [], **listing}
    return Pages(StaticFiles(), LINKS).render("changes.html.j2", **values)


def _page_of(change: LoggedChange, *unknown: str, changed: Changed | None = None, turned: Turned | None = None) -> str:
    values = {"row": change_row(change), "changed": changed or Changed(change), "unknown": unknown}
    rest = {"marks": MARKS, "rollback": "", "after": "/", "turned": turned, "compare_address": "/"}
    return Pages(StaticFiles(), LINKS).render("change.html.j2", here="/changes", viewer=EVERYTHING, **values, **rest)


def test_documents_that_a_change_does_not_list_are_not_left_out_of_its_counts() -> None:
    """The record of an apply of 102,000 documents lists 1,000: "1000 added" would be another change."""
    whole = _change("cdap", 1)
    cut = LoggedChange("x", [msgspec.structs.replace(whole.parts[0], documents_count=102_000)], [], "changes-1")
    for page in (_list_of(cut), _page_of(cut)):
        assert "among the first 1 of 102000 documents" in page
    assert "101999 others" in _page_of(cut)
    assert "among the first" not in _page_of(whole)


def test_a_link_names_a_document_as_changes_do_that_shorten_its_name() -> None:
    """The address would be refused as too long: 10,000 characters are a name."""
    key = f"lenses6/Role/{'x' * 10_000}"
    difference = Difference("lenses6", "added", "text", key, True)
    template = '{% import "_parts.html.j2" as p %}{{ p.differences(rows) }}'
    page = Pages(StaticFiles())._environment.from_string(template).render(rows=[Concerned(difference, (), ())])
    [address] = re.findall(r'href="([^"]+)"', page)
    [named] = parse_qs(urlsplit(html.unescape(address)).query)["document"]
    assert len(named) <= MOST_TEXT
    listed = (DocumentChange(shorten_id(key), "added", 1),)
    part = msgspec.structs.replace(_change("lenses6", 1).parts[0], documents=listed)
    assert has_document([part], named)
    assert link_name(named) == named, "that of a change is not shortened again"


@pytest.mark.parametrize("time", ["yesterday", "", "10000-01-01T00:00:00Z", "2026-13-01T00:00:00Z"])
def test_a_change_of_no_time_is_none_rather_than_the_end_of_the_list(time: str) -> None:
    """One such record on the topic, and no page of changes could be shown."""
    [part] = _change("cdap", 1).parts
    assert read_change(msgspec.json.encode(part)) == part
    with pytest.raises(ValueError, match="RFC 3339"):
        read_change(msgspec.json.encode(msgspec.structs.replace(part, time=time)))


def test_every_template_has_the_filters_that_it_names() -> None:
    """A page that no quick test renders would be an internal error."""
    environment = Pages(StaticFiles())._environment
    names = environment.list_templates(extensions=["j2"])
    assert "decision.html.j2" in names
    for name in names:
        environment.get_template(name)


def test_no_requests_are_not_called_the_newest_ones() -> None:
    """Where others had the newest ones, "0 of the newest 0 requests" read as if nothing had been asked."""
    shown = [_page_of(_change("cdap", 1), turned=Turned(count, [])) for count in (0, 3)]
    assert ["None of the newest requests was decided" in page for page in shown] == [True, False]
    assert ["of the newest 3 requests" in page for page in shown] == [False, True]
    assert not any("newest 0" in page for page in shown)


def test_what_is_no_longer_known_is_not_called_unchanged() -> None:
    shown = {why: _page_of(_change("cdap", 1), *filter(None, (why,))) for why in ("", "compaction took it")}
    says_unchanged = ["No grant, membership or fact is another" in page for page in shown.values()]
    assert says_unchanged == [True, False]
