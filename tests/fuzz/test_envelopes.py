"""Java answers hostile requests as Python, or leaves them to it; and what answers otherwise is found."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from policy import compile_documents
from streaming.enforcer.evaluator import Evaluator
from streaming.runtime.spark import start_session
from streaming.settings import Limits
from tests.fuzz.envelopes import Disagreement, Envelopes
from tests.stream.world import SHORT_LIVED

pytestmark = [pytest.mark.stream, pytest.mark.long]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = start_session("envelopes", SHORT_LIVED, "local[1]")
    yield session
    session.stop()


def test_java_answers_hostile_requests_as_python_or_not_at_all(spark: SparkSession) -> None:
    fuzzed = Envelopes(spark, "a test").run(20_000)
    assert fuzzed.answered > fuzzed.envelopes / 20


def test_an_answer_that_python_would_not_give_is_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    envelopes = Envelopes(spark, "a test")
    monkeypatch.setattr(envelopes, "_careful", Evaluator(compile_documents([]), Limits()))
    with pytest.raises(Disagreement):
        envelopes.run(2_000)
