"""Each bug that Java's table may have is found by a test of `test_known_answers`."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from policy import compile_documents
from streaming.runtime.spark import start_session
from tests.policy import test_answer_mutants as checks
from tests.stream import test_known_answers as tests
from tests.stream.known import compile_mutant, mutant_source
from tests.stream.test_known_answers import DOCUMENTS, InJava, Ways
from tests.stream.world import SHORT_LIVED

_numbers = itertools.count()


class Mutant(NamedTuple):
    """What is replaced in which file."""

    file: str
    right: str
    wrong: str


def _key_without(part: str) -> Mutant:
    return Mutant("Content.java", f"part(request, RequestScan.{part});", "add(SEPARATOR);")


MUTANTS = {
    **{f"a key without {part.lower()}": _key_without(part) for part in ("SYSTEM", "SUBJECT", "ACTION", "TYPE")},
    "a key without properties": Mutant("Content.java", "add(request.text, first, repeated - first);", ""),
    "a key without what follows the id": Mutant("Content.java", "add(request.text, behind, end - behind);", ""),
    "a key without context": Mutant("ContextFields.java", "to.add(request.text, start, length);", ""),
    "a context without what its system is shown": Mutant(
        "ContextFields.java", "if (index(shown, request.text, starts[count], ends[count]) >= 0) {", "if (false) {"
    ),
    "a context whose names stand twice": Mutant("ContextFields.java", "isNew && other < count", "false"),
    "what follows the members of a context": Mutant(
        "ContextFields.java", "separator == '}' && request.at == end", "true"
    ),
    "what is left of members that are not told apart": Mutant("ContextFields.java", "to.cut(size);", ""),
    "a key without the id": Mutant(
        "Content.java",
        "return add(request.text, request.start[RequestScan.RESOURCE], request.length[RequestScan.RESOURCE]).done();",
        "return done();",
    ),
    "members that stand twice": Mutant("RequestScan.java", "|| length[part] > 0 ||", "||"),
    "escapes in texts": Mutant("RequestScan.java", "|| c > '~' || c == '\\\\'", "|| c > '~'"),
    "texts that are not ASCII": Mutant("RequestScan.java", "c < lowest ||", "c >= 0 && c < lowest ||"),
    "a name with a blank": Mutant("RequestScan.java", "plain('!') && at", "plain(' ') && at"),
    "an empty id": Mutant("RequestScan.java", "plain(' ') && at - start > EMPTY", "plain(' ')"),
    "what follows a request": Mutant("RequestScan.java", "return at == text.length && length[ID]", "return length[ID]"),
    "no id of a request": Mutant("RequestScan.java", "at == text.length && length[ID] > 0", "at == text.length"),
    "control characters in a key": Mutant(
        "RequestScan.java", "} else if (depth == 0 || c >= 0 && c < ' ' && !isBlank(c)) {", "} else if (depth == 0) {"
    ),
    "a key without the mark of the id": Mutant("Content.java", "add(PROPERTY_IS_ID);", ""),
    "moments in seconds": Mutant(
        "RequestScan.java", "(number < LIKE_SECONDS_FIRST || number > LIKE_SECONDS_LAST)", "true"
    ),
    "moments after all": Mutant("RequestScan.java", "number <= LAST_MOMENT", "true"),
    "numbers with zeros before them": Mutant("RequestScan.java", "(text[first] != '0' || at == first + 1)", "true"),
    "the edge at the end": Mutant("KnownQuery.java", "at < until", "at <= until"),
    "the edge at the beginning": Mutant("KnownQuery.java", "since <= at &&", ""),
    "stale after a change of facts": Mutant(
        "KnownAnswers.java", "lookups.add(Long.valueOf(versions.lookups[(int) (change - versions.first)]));", ""
    ),
    "stale after a change of policies": Mutant(
        "KnownAnswers.java", "changed(epochs, versions.epochs)", "new HashSet()"
    ),
    "what a task of older policies has learned": Mutant(
        "KnownAnswers.java", "if (version != this.version) {\n            return;", "if (false) {\n            return;"
    ),
    "what is found by a task of older policies": Mutant(
        "KnownAnswers.java", "content == null || version != this.version", "content == null"
    ),
    "records that are committed": Mutant("KnownRecords.java", "if (offset < range.committed) {", "if (false) {"),
    "ids of answers that outlive a trie": Mutant("KnownAnswers.java", "query.states.hasEnded ? QUERY : STATE", "STATE"),
    "answers that outlive a trie are taught no more": Mutant(
        "KnownQuery.java", "(states == null || !states.hasEnded) && ", ""
    ),
    "where ids led under policies before": Mutant("KnownAnswers.java", "scopes.remove();", ""),
    "stale where changes were missed": Mutant("KnownAnswers.java", "versions.isContinued(changes) && ", ""),
    "one table for every trust": Mutant(
        "KnownTask.java",
        "TABLES.get(partition.trust)",
        "(TABLES.isEmpty() ? null : TABLES.values().iterator().next())",
    ),
    "a partition of another topic": Mutant("KnownTask.java", " && partitions[number].topic.equals(range.topic)", ""),
    "another partition": Mutant("KnownTask.java", "partitions[number].number == range.partition && ", ""),
    "every claimed time": Mutant("KnownRecords.java", "&& partition.trustsTime ? scan.time", "? scan.time"),
    "no claimed time": Mutant(
        "KnownRecords.java", "scan.time != RequestScan.NO_MOMENT && partition.trustsTime ?", "false ?"
    ),
    "deadlines that are over": Mutant("KnownRecords.java", "task.now > scan.deadline", "task.now - 1 > scan.deadline"),
    "the first of several traces": Mutant("InputRecord.java", "if (length >= 0", "if (carried == null && length >= 0"),
    "traces of any length": Mutant("InputRecord.java", "length <= CARRIED_BYTES", "true"),
    "headers whose names begin alike": Mutant(
        "InputRecord.java", "nameStart + nameLength, name,", "nameStart + 10, name,"
    ),
    "a fraction of other digits": Mutant("RequestScan.java", "fraction *= 10;", "fraction += 0;"),
    "what follows a second": Mutant("RequestScan.java", "&& text[at] == 'Z' &&", "&&"),
    "records that are too large": Mutant(
        "KnownRecords.java", "value.length + request.keyLength() > task.recordIn", "false"
    ),
    "decisions that are too large": Mutant(
        "KnownRecords.java", "task.recordOut - request.keyLength()", "Integer.MAX_VALUE"
    ),
    "texts that a pattern has are like others": Mutant("TrieStates.java", "add(TEXT).add(text", "add(PREFIX).add(text"),
    "a last part that is empty": Mutant("TrieStates.java", "from == null || last == end ? null", "from == null ? null"),
    "any prefix": Mutant("TrieStates.java", "if (lengths[number] <= end - start) {", "if (lengths[number] == 0) {"),
    "another offset": Mutant("KnownDecision.java", ".add(number).add(END)", ".add(END)"),
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("mutants", SHORT_LIVED, "local[1]")
    yield session
    session.stop()


def _checks(spark: SparkSession) -> Iterator[Callable[[], Any]]:
    """Tests of the table, the quick ones before others."""

    def ways() -> Ways:
        return Ways(spark, compile_documents(DOCUMENTS))

    yield lambda: tests.test_ids_that_were_never_seen_are_known_where_they_lead_to_a_known_state(ways())
    yield lambda: tests.test_answers_that_changed_policies_may_touch_end_and_an_older_task_finds_none(ways())
    yield lambda: tests.test_executors_that_missed_a_change_of_facts_forget_all(ways())
    yield lambda: tests.test_each_trust_has_its_own_answers(spark)
    yield lambda: tests.test_records_of_a_partition_that_the_task_does_not_name_are_left_to_python(ways())
    yield lambda: tests.test_an_older_task_finds_no_answer_of_a_newer_one_that_began_meanwhile(ways())
    yield lambda: tests.test_records_before_the_committed_offset_are_not_decided_again(ways())
    yield lambda: tests.test_records_beyond_the_limits_are_not_decided(spark)
    yield lambda: tests.test_a_property_that_repeats_the_id_stands_for_it_as_in_python(spark, 1)
    yield lambda: tests.test_an_id_that_is_new_is_asked_for_again_after_a_change_that_may_tell_it_apart(spark)
    yield lambda: tests.test_where_ids_lead_ends_with_the_policies(spark)
    yield lambda: tests.test_ids_by_globs_are_known_one_by_one_and_lead_elsewhere_under_other_policies(spark)
    yield lambda: tests.test_a_context_is_part_of_what_is_asked(spark)
    yield lambda: tests.test_what_a_system_is_not_shown_of_a_context_is_no_part_of_what_is_asked(ways())
    yield lambda: tests.test_what_a_system_is_shown_of_a_context_is_part_of_what_is_asked(spark)
    yield lambda: tests.test_what_is_no_request_is_left_to_python(ways())
    yield lambda: tests.test_of_any_headers_the_traces_are_carried_over(ways())
    yield lambda: tests.test_time_and_deadline_are_those_that_python_goes_by(spark)
    yield lambda: tests.test_moments_are_written_as_in_the_examples_of_the_contracts(spark, "time")
    yield checks.compare


def _run(checks: Iterator[Callable[[], Any]]) -> None:
    for check in checks:
        check()


@pytest.mark.parametrize("name", MUTANTS)
def test_each_bug_can_be_planted_in_the_code_as_it_is(name: str) -> None:
    mutant_source(*MUTANTS[name])


@pytest.mark.stream
@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_each_bug_is_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    package = f"mutant{next(_numbers)}"
    compile_mutant(spark, package, tmp_path, *MUTANTS[name])
    monkeypatch.setattr(Ways, "package", package)
    monkeypatch.setattr(checks, "InWorker", InJava)
    InJava.spark = spark
    with pytest.raises((AssertionError, Py4JJavaError, CapturedException)):
        _run(_checks(spark))
