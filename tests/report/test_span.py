"""Which range the options name."""

import pytest

from streaming.history.span import DAY, HOUR, MINUTE, MOST_STEPS, Span, SpanError, span_of

NOW = 1_795_345_200_000  # 2026-11-22T11:00:00Z


@pytest.mark.parametrize(
    ("since", "until", "last", "start", "end"),
    [
        (None, None, None, NOW - DAY, NOW),
        (None, None, "90m", NOW - 90 * MINUTE, NOW),
        (None, "2026-11-22T00:00:00Z", "2d", NOW - 11 * HOUR - 2 * DAY, NOW - 11 * HOUR),
        ("2026-11-22T10:00:00+01:00", None, None, NOW - 2 * HOUR, NOW),
        (str(NOW - 5), str(NOW - 3), None, NOW - 5, NOW - 3),
    ],
)
def test_the_options_name_a_range(since: str | None, until: str | None, last: str | None, start: int, end: int) -> None:
    assert span_of(since, until, last, NOW) == Span(start, end)


@pytest.mark.parametrize(
    ("since", "until", "last", "message"),
    [
        ("2026-11-22T12:00:00Z", None, None, "the range is empty: --from 2026-11-22T12:00:00.000Z is not before"),
        ("2026-11-22", None, None, "--from: '2026-11-22' is not RFC 3339"),
        (None, "noon", None, "--until: 'noon' is not RFC 3339"),
        (None, None, "24", "--last 24: write a number and a unit"),
        (None, None, "", "--last : write a number and a unit"),
        (None, None, "0h", "--last 0h: write a number and a unit"),
        (None, None, "99999w", "--last 99999w: that is before 1970"),
        ("2026-11-22T10:00:00Z", None, "1h", "--from and --last both say"),
        (None, "1970-01-01T09:00:00Z", None, "--last 24h: that is before 1970"),
    ],
)
def test_what_is_no_range_is_reported(since: str | None, until: str | None, last: str | None, message: str) -> None:
    with pytest.raises(SpanError, match=message.replace("+", r"\+")):
        span_of(since, until, last, NOW)


@pytest.mark.parametrize("length", [1, 999, 60_000, HOUR, 5 * HOUR, DAY, 31 * DAY, 3650 * DAY])
def test_steps_are_few_and_cover_the_range(length: int) -> None:
    span = Span(NOW + 12_345, NOW + 12_345 + length)
    assert 1 <= span.steps <= MOST_STEPS + 1
    assert span.first <= span.start
    assert span.end <= span.first + span.steps * span.step
    assert span.first % span.step == 0


def test_the_end_is_left_out() -> None:
    span = Span(10, 20)
    assert [span.holds(moment) for moment in (9, 10, 19, 20)] == [False, True, True, False]
