"""When a policy of Ranger is in force: its validity schedules as windows of grants."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from policy.core.times import ALWAYS, EPOCH, Window, to_ms
from policy.systems.kit.validator import Validator

FORM = "%Y/%m/%d %H:%M:%S"


def windows(schedules: Any) -> Sequence[Window]:
    """When at least one schedule holds: each a window of its own. Raises ValueError for what windows cannot say."""
    if not schedules and (schedules is None or isinstance(schedules, list)):
        return [ALWAYS]
    if not isinstance(schedules, list):
        raise ValueError(f"must be a list, not {type(schedules).__name__}")
    return [_window(schedule) for schedule in schedules]


def _window(schedule: Any) -> Window:
    validator = Validator(schedule)
    start, end, zone = (validator.text(field, required=False) for field in ("startTime", "endTime", "timeZone"))
    if validator.raw("recurrences"):
        validator.error("a schedule that recurs has no one window", "recurrences")
    if not zone:
        validator.error("required: without it the time zone of each server counts", "timeZone")
    validator.reject_unknown()
    if validator.errors:
        raise ValueError("; ".join(validator.errors))
    window = Window(_moment(start, zone) if start else None, _moment(end, zone) if end else None)
    if window.start is not None and window.end is not None and window.start >= window.end:
        raise ValueError("ends before it begins")
    return window


def _moment(text: str, zone: str) -> int:
    """ms since the epoch; local times that are there twice, or not at all, when clocks change, are none."""
    try:
        local = datetime.strptime(text, FORM).replace(tzinfo=ZoneInfo(zone))
    except (ValueError, KeyError, OSError):
        raise ValueError(f"{text!r} in {zone!r} is not a moment such as 2026/11/21 10:00:00 in Europe/Vienna") from None
    if local.utcoffset() != local.replace(fold=1).utcoffset():
        raise ValueError(f"{text!r} in {zone!r} is when clocks change, and could be two moments")
    return to_ms(int((local - EPOCH).total_seconds()) * 1000)
