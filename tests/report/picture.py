"""A picture of the report about generated traffic, to look at: `python -m tests.report.picture FILE.png`.

It needs Chromium. The same traffic each time, so pictures of two versions can be compared.
"""

import random
import sys
import tempfile
from pathlib import Path

from streaming.report.page import render
from tests.report.browser import Browser, find_browser
from tests.report.world import BEGIN, HOUR, World, group, query, role

ORDERS = "kafka:topic:prod/main/orders"
WIDTH, HEIGHT = 1000, 2700
MINUTES = 25


def generated() -> World:
    """25 minutes of traffic in a range of 24 hours: a burst of denials, an escalation, and updates of one episode."""
    chance = random.Random(7)
    documents = [role("readers", ("allow", "kafka:Get*", ORDERS), ("allow", "kafka:List*", "*"))]
    world = World(*documents, role("ops", ("allow", "kafka:*", "*")), group("g", ["readers"], "user:dana", "user:erik"))
    for minute in range(MINUTES):
        at = BEGIN + 9 * HOUR + minute * 60_000
        for _ in range(30):
            user = chance.choice(("user:dana", "user:erik"))
            world.ask(query(user, "GetTopicDetails", "orders"), at=at + chance.randrange(60_000))
        for _ in range(40 if minute == 17 else 2):
            user = "user:mallory" if minute == 17 else "user:erik"
            topic = chance.choice(("salaries", "payments"))
            world.ask(query(user, "DeleteTopic" if minute == 17 else "ListTopic", topic), at=at + 500)
    _raise_alerts(world, BEGIN + 9 * HOUR + 17 * 60_000)
    for number in range(3):
        world.dead_letter(f"not a request: no id (byte {number})")
    return world


def _raise_alerts(world: World, at: int) -> None:
    first = {"time": "2026-11-21T20:17:00.500Z", "what": "denied: kafka:DeleteTopic on kafka:topic:prod/main/salaries"}
    for count in (11, 25, 40):
        extent = {"system": "lenses6", "count": count, "first": first["time"], "last": "2026-11-21T20:17:00.500Z"}
        about = {"id": "denial-burst-1", "subject": "user:mallory", "time": first["time"], "evidence": [extent, first]}
        world.alert(at, **about, message=f"{count} requests of user:mallory were denied in a short time")
    evidence = [{"document": "lenses6/Role/ops", "topic": "authz.policies.lenses6.v1", "offset": 41}]
    kind = {"kind": "privilege-escalation", "severity": "critical", "subject": "lenses6/Role/ops"}
    world.alert(at, **kind, message="lenses6/Role/ops changed: * for user:mallory", evidence=evidence)


def take(out: Path) -> None:
    """Write the picture."""
    program = find_browser()
    assert program is not None, "no Chromium here: install one, or name it in LOCKKEEPER_TEST_BROWSER"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(render(generated().report()), encoding="utf-8")
        out.write_bytes(Browser(program, Path(folder) / "profile").screenshot(page, WIDTH, HEIGHT))


if __name__ == "__main__":
    take(Path(sys.argv[1]))
