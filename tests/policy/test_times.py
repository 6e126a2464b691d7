"""Moments are RFC 3339 to the letter, or ms."""

from enum import IntEnum

import pytest

from policy.core.times import EPOCH, LAST_MS, to_ms, to_text

TEN = 1_795_255_200_000  # 2026-11-21T10:00:00Z
NEW_YEAR = 1_798_761_600_000  # 2027-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-21T10:00:00Z", TEN),
        ("2026-11-21t10:00:00z", TEN),
        ("2026-11-21T10:00:00+00:00", TEN),
        ("2026-11-21T10:00:00-00:00", TEN),
        ("2026-11-21T11:30:00+01:30", TEN),
        ("2026-11-20T10:01:00-23:59", TEN),
        ("2026-11-21T10:00:00.5Z", TEN + 500),
        ("2026-11-21T10:00:00.1239999999999Z", TEN + 123),
        (f"2026-11-21T10:00:00.{'9' * 10_000}Z", TEN + 999),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("1970-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59.999Z", LAST_MS),
    ],
)
def test_rfc_3339_is_read(text: str, moment: int) -> None:
    assert to_ms(text) == moment


@pytest.mark.parametrize(
    "text",
    [
        "2026-12-31T23:59:60Z",
        "2026-12-31t23:59:60z",
        "2026-12-31T23:59:60.75Z",
        "2026-12-31T15:59:60-08:00",
        "2027-01-01T05:29:60+05:30",
    ],
)
def test_a_leap_second_is_the_start_of_the_next(text: str) -> None:
    """Also what lies within it: it is never later than what comes after it."""
    assert to_ms(text) == NEW_YEAR


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T10:00:60Z",
        "2026-12-31T23:59:60+01:00",
        "2026-12-30T23:59:60Z",
        "0001-01-01T00:59:60+01:00",
        "9999-12-31T23:59:60Z",
    ],
)
def test_a_leap_second_is_the_last_of_a_month_in_utc(text: str) -> None:
    """And before the year 10000."""
    with pytest.raises(ValueError, match="is not RFC 3339"):
        to_ms(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-11-21",
        "2026-11-21T10:00:00",
        "2026-11-21 10:00:00Z",
        "2026-11-21_10:00:00Z",
        "2026-W47-6T10:00:00Z",
        "20261121T100000Z",
        "2026-325T10:00:00Z",
        "2026-11-21T10Z",
        "2026-11-21T10:00Z",
        "2026-11-21T10:00:00,5Z",
        "2026-11-21T10:00:00.Z",
        "2026-11-21T10:00:00+00:00:30",
        "2026-11-21T10:00:00+0100",
        "2026-11-21T10:00:00+01",
        "2026-11-21T10:00:00+24:00",
        "2026-11-21T10:00:00+01:60",
        "2026-11-21T24:00:00Z",
        "2026-11-21T10:60:00Z",
        "2026-11-21T10:00:61Z",
        "26-11-21T10:00:00Z",
        "+2026-11-21T10:00:00Z",
        "2026-11-21T10:00:00Z\n",
        " 2026-11-21T10:00:00Z",
        "2026-11-21T10:00:00 Z",
        "٢٠٢٦-11-21T10:00:00Z",
        "2026-11-21T10:00:00.٥Z",
        "2026-11-21T10:00:00−01:00",
    ],
)
def test_what_is_not_rfc_3339_is_refused(text: str) -> None:
    """Other forms of ISO 8601, other digits, and hours, minutes and offsets that no clock shows."""
    with pytest.raises(ValueError, match=r"is not RFC 3339 with a zone, such as 2026-11-21T10:00:00Z$"):
        to_ms(text)


@pytest.mark.parametrize("text", ["2026-02-29T10:00:00Z", "2026-13-01T10:00:00Z", "0000-01-01T10:00:00Z"])
def test_a_day_that_no_calendar_has_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not RFC 3339 with a zone, such as .*Z: (day|month|year) "):
        to_ms(text)


@pytest.mark.parametrize("value", ["1969-12-31T23:59:59.9999Z", "9999-12-31T23:59:59-01:00", -1, LAST_MS + 1])
def test_moments_are_between_1970_and_9999(value: object) -> None:
    with pytest.raises(ValueError, match="ms is not between 1970 and 9999"):
        to_ms(value)


@pytest.mark.parametrize("value", [None, True, 1.5, EPOCH, b"2026-11-21T10:00:00Z"])
def test_what_is_neither_text_nor_a_whole_number_is_no_moment(value: object) -> None:
    with pytest.raises(ValueError, match="is not a moment: write RFC 3339"):
        to_ms(value)


@pytest.mark.parametrize("moment", [0, 1, 999, TEN, NEW_YEAR, LAST_MS])
def test_what_is_written_is_read_back(moment: int) -> None:
    assert to_ms(to_text(moment)) == moment


@pytest.mark.parametrize("number", [10**9, 1_798_711_200, 10**11])
def test_a_number_that_is_our_time_in_seconds_is_refused_with_both_readings(number: int) -> None:
    """Taken as ms, a deny with such an end was over in January 1970."""
    both = f"{to_text(number)} in milliseconds, {to_text(1000 * number)} in seconds"
    with pytest.raises(ValueError, match=f"{number} may be {both}"):
        to_ms(number)


@pytest.mark.parametrize("number", [0, 1, 10**9 - 1, 10**11 + 1, 1_798_711_200_000, LAST_MS])
def test_other_numbers_are_milliseconds(number: int) -> None:
    assert to_ms(number) == number


def test_a_number_of_a_subclass_of_int_is_read_at_once_as_the_number_that_it_is() -> None:
    """A range goes through all of its numbers for one: a request with such a time took an hour."""
    moment = IntEnum("Moment", {"NOW": TEN, "SECONDS": 1_798_711_200})
    read = to_ms(moment.NOW)
    assert (read, type(read)) == (TEN, int)
    with pytest.raises(ValueError, match="1798711200 may be"):
        to_ms(moment.SECONDS)


def test_text_says_what_it_means() -> None:
    assert to_ms("1971-01-01T00:00:00Z") == 365 * 86_400_000
