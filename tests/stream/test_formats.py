"""What an older lockkeeper kept is read; what a newer one kept is refused, with what to do."""

import pytest

from streaming.commit.offsets import FORMAT, check_format, form_of
from streaming.errors import CannotStart
from streaming.kafka.reader import TopicLog
from streaming.snapshots.documents import AT, FORM, NEXT, SINCE, TOPIC_ID, DocumentRecord, History, said_since

NAMES = {"lenses6": "policies"}
KEY = b"lenses6/Role/readers/3"
VERSION = b'{"system": "lenses6"}'
LOGS = {"policies": TopicLog("id-1")}
HEADERS = [(AT, b"1000"), (NEXT, b"4")]


@pytest.mark.parametrize(
    ("metadata", "form"),
    [
        ('{"checkpoint":"query","batch":5,"topic_id":"id-1"}', 1),
        ('{"checkpoint":"query","batch":5,"topic_id":"id-1","format":1}', 1),
        ('{"everything":"else","format":7}', 7),
        ("", 1),
        (None, 1),
        ("another program's", 1),
    ],
)
def test_a_mark_without_a_form_is_of_the_first_and_what_a_newer_one_says_besides_does_not_matter(
    metadata: str | None, form: int
) -> None:
    assert form_of(metadata) == form


def test_known_forms_are_taken_and_newer_ones_refused_with_the_way_out() -> None:
    for known in range(1, FORMAT + 1):
        check_format(known, "somewhere")
    message = rf"somewhere is of form {FORMAT + 1}.*newer version.*docs/pages/upgrading.md"
    with pytest.raises(CannotStart, match=message):
        check_format(FORMAT + 1, "somewhere")


WITH_ID = [*HEADERS, (FORM, b"1"), (TOPIC_ID, b"id-1")]


@pytest.mark.parametrize(
    "headers", [HEADERS, [*HEADERS, (FORM, b"1")], WITH_ID], ids=["0.1.0", "with a form", "with an id"]
)
def test_kept_versions_of_known_forms_are_read_back(headers: list[tuple[str, bytes]]) -> None:
    """Those that name no topic id are of the topic, if the mark beside its committed offset says so."""
    kept = History("history", NAMES, 1000, LOGS).read_back(KEY, VERSION, headers, trusted={"policies"})
    assert kept is not None
    assert kept.record == DocumentRecord("policies", b"Role/readers", VERSION, 3, 1000)


def test_a_kept_version_of_a_newer_form_stops_the_start_naming_the_record() -> None:
    """Left out, or read amiss, it could bring back a right that was revoked."""
    with pytest.raises(CannotStart, match=r"lenses6/Role/readers/3.* of history is of form 99"):
        History("history", NAMES, 1000, LOGS).read_back(KEY, VERSION, [*HEADERS, (FORM, b"99")])


def test_other_programs_records_on_the_history_topic_may_say_what_they_like() -> None:
    assert History("history", NAMES, 1000, LOGS).read_back(b"not ours", VERSION, [(FORM, b"99")]) is None


@pytest.mark.parametrize(
    ("headers", "since"),
    [
        ([(SINCE, b"1000")], 1000),
        ([("content-type", b"application/json"), (SINCE, b"0")], 0),
        ([], None),
        ([(SINCE, None)], None),
        ([(SINCE, b"-1")], None),
        ([(SINCE, b"yesterday")], None),
        ([(SINCE, b"9" * 5000)], None),
        ([(SINCE, b"\xff")], None),
    ],
)
def test_a_deletion_says_since_when_it_holds_or_the_log_does(
    headers: list[tuple[str, bytes | None]], since: int | None
) -> None:
    assert said_since(headers) == since
