"""The page: right numbers, nothing but inert markup whatever the records hold, the same page for the same report."""

import re
from html.parser import HTMLParser

import msgspec
import pytest

from streaming.report.page import length_text, render, unusual, with_words
from streaming.terminal import one_line
from tests.report.hostile import HACKED, hostile_report, hostile_texts
from tests.report.world import BEGIN, HOUR, SPAN, World, group, query, record, role

ORDERS = "kafka:topic:prod/main/orders"
OURS = """
    html head meta link title style body header nav main section footer h1 h2 p ul li a dl div dt dd figure table
    caption thead tbody tfoot tr th td time bdi code span strong em details
    summary svg defs g path pattern rect text tspan use clippath
"""


class Page(HTMLParser):
    """What a browser would make of a page, as far as it matters here."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def busy_world() -> World:
    """Some of everything."""
    statements = (("allow", "kafka:Get*", ORDERS), ("deny", "kafka:DeleteTopic", "*"), ("allow", "kafka:List*", ORDERS))
    world = World(role("r", *statements), group("g", ["r"], "user:dana"))
    world.ask(query("user:dana", "GetTopicDetails", "orders"), times=1200)
    world.ask(query("user:dana", "DeleteTopic", "orders"), times=7, at=BEGIN + 5 * HOUR)
    world.alert(severity="high", message="something is wrong")
    world.dead_letter("not a request: no id")
    return world


def test_numbers_stand_on_the_page() -> None:
    changed = [record("policies", 7, BEGIN, role("new", ("allow", "kafka:*", ORDERS)), "Role/new")]
    page = Page(render(busy_world().report(changes=changed)))
    shown = " ".join(page.texts)
    for text in ("1,207", "99.4 %", "0.6 %", "user:dana", "something is wrong", "not a request: no id"):
        assert text in page.texts
    assert "Decisions of this range name 2 of them" in shown
    assert "role:r allow kafka/List* on kafka/topic/prod/main/orders" in page.texts
    assert "+ role:new allow kafka/* on kafka/topic/prod/main/orders" in page.texts


@pytest.fixture(scope="module")
def hostile() -> str:
    """The page of a report that means harm."""
    return render(hostile_report())


def test_whatever_the_records_hold_the_page_has_no_other_elements_than_ours(hostile: str) -> None:
    page = Page(hostile)
    assert page.tags.keys() <= set(OURS.split())
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    sources = [(name, value) for name, value in page.attributes if name in ("href", "src", "xlink:href", "action")]
    assert all(value.startswith("#") or value == "data:," for _, value in sources)
    assert not [value for name, value in page.attributes if name == "style" and "//" in value]
    assert page.tags["title"] == page.tags["h1"] == page.tags["style"] - page.tags["svg"] == 1


def test_hostile_names_are_shown_as_they_came_and_unseen_characters_as_codes(hostile: str) -> None:
    page = Page(hostile)
    for text in hostile_texts("127.0.0.1:9")[:-1]:
        assert page.texts.count(one_line(text)) >= 6, f"{text!r} in its places"
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\x00\x1b]", hostile)
    assert "\\u202egnp" in hostile
    assert HACKED not in " ".join(page.texts[:2])


def test_long_names_are_cut_where_it_says_so(hostile: str) -> None:
    """Names after 300 or 400 characters, messages and evidence after 1,500."""
    assert "x" * 1501 not in hostile
    assert len(re.findall("x{401,}", hostile)) == 4, "the messages of two alerts, two pieces of evidence of one"
    assert hostile.count("… (10,000 characters, sha256 ") > 10


def test_names_stand_as_text_in_the_plots_too(hostile: str) -> None:
    drawn = hostile.partition('id="alerts-')[2].partition("</svg>")[0]
    assert "&lt;script&gt;document.title=" in drawn
    assert "$\\frac{1}{0}$" in drawn, "no formula was made of it"


def test_the_same_report_gives_the_same_page() -> None:
    report = busy_world().report()
    first = render(report)
    assert first == render(report)
    assert "<metadata" not in first


def test_ids_are_unique_and_every_reference_has_one() -> None:
    world = busy_world()
    html = render(world.report())
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    references = re.findall(r'(?:href="|url\(|aria-labelledby=")#?([\w-]+)', html.replace("data:,", ""))
    assert set(references) <= set(ids)


def test_nothing_may_be_loaded_or_run() -> None:
    html = render(World().report())
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "https://" not in html


def test_alerts_lead_to_the_console_where_its_url_is_known() -> None:
    world = World()
    world.alert(severity="high", id='a/"b"')
    report = world.report()
    assert "href" not in render(report).split('id="alerts"')[1].split("<tbody>")[1].split("</section>")[0]
    linked = Page(render(msgspec.structs.replace(report, console="https://console.example.com/")))
    assert ("href", "https://console.example.com/alerts/a%2F%22b%22") in linked.attributes


def test_an_empty_range_says_so_everywhere() -> None:
    page = Page(render(World().report()))
    shown = " ".join(page.texts)
    assert "Nothing was recorded in this range:" in shown
    for what in ("No decisions", "Nothing was denied", "No alerts", "No policy changed", "No statements", "No dead"):
        assert what in shown
    assert "svg" not in page.tags


def test_what_could_not_be_looked_up_or_read_is_reported() -> None:
    world = busy_world()
    world.requests = world.requests[:-3]
    world.decisions.append(record("decisions", 1, BEGIN, b"\xc3\x01"))
    world.alerts.append(record("alerts", 1, BEGIN, b"\xc3\x01"))
    shown = " ".join(Page(render(world.report())).texts)
    assert "Of 7 denied answers, the requests of 3 could not be looked up" in shown
    assert "1 record of the decisions topic could not be read" in shown
    assert "1 record of the alerts topic could not be read" in shown


def test_approximate_counts_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.report.untrusted.BoundedCounter.__init__.__defaults__", (2,))
    world = busy_world()
    for number in range(20):
        world.ask(query(f"user:{number}", "GetTopicDetails", "orders"), times=1 + number % 3)
    shown = " ".join(Page(render(world.report())).texts)
    assert "Approximate: there were too many different names to hold" in shown


def test_tables_have_headers_and_drawings_say_what_they_are() -> None:
    html = render(busy_world().report())
    page = Page(html)
    assert page.tags["caption"] == page.tags["table"] == page.tags["thead"]
    assert html.count("<th ") == html.count("<th scope=")
    assert html.count("<svg ") == html.count('role="img"') == 2
    assert ("lang", "en") in page.attributes


def test_lengths_are_shown_in_their_largest_whole_unit() -> None:
    shown = [length_text(length) for length in (1, 1000, 90_000, HOUR, 7 * 24 * HOUR)]
    assert shown == ["1 millisecond", "1 second", "90 seconds", "1 hour", "7 days"]


def test_the_range_and_the_zone_are_shown() -> None:
    shown = " ".join(Page(render(World().report(SPAN))).texts)
    assert "2026-11-21 11:00:00 to 2026-11-22 11:00:00 UTC" in shown


def test_the_sentence_on_top_says_what_is_unusual() -> None:
    assert unusual(steady_world().report()).startswith("Nothing unusual: ")
    world = steady_world()
    world.ask(query("user:eve", "DeleteTopic", "orders"), times=40, at=BEGIN + 7 * HOUR)
    world.ask(query("dana", "GetTopicDetails", "orders"), times=20, at=BEGIN + HOUR)
    world.alert(kind="privilege-escalation", severity="critical", subject="lenses6/Role/ops")
    world.dead_letter("not a request: no id")
    report = world.report(changes=[record("policies", 7, BEGIN, b"{", "Role/broken")])
    assert unusual(report) == (
        "Unusual: 1 alert critical or high, the newest privilege-escalation (lenses6/Role/ops); 1 document refused; "
        "6.7 % of the decisions are errors; 41 denials in the 30 minutes from 2026-11-21 18:00:00, the median is 1."
    )
    assert unusual(report) in Page(render(report)).texts


def steady_world() -> World:
    """Allowed and denied evenly over 24 hours."""
    world = busy_world()
    world.requests, world.decisions, world.alerts, world.dead = [], [], [], []
    for half_hour in range(48):
        at = BEGIN + half_hour * HOUR // 2
        world.ask(query("user:dana", "GetTopicDetails", "orders"), times=4, at=at)
        world.ask(query("user:dana", "DeleteTopic", "orders"), at=at)
    return world


def test_a_code_has_words_and_an_unknown_one_stays() -> None:
    assert with_words("deny: no-grant") == "deny: no grant covers it (no-grant)"
    assert with_words("deny: {}") == "deny: {}"
    assert with_words("no-such") == "no-such"


def test_what_retention_may_have_deleted_is_said_before_the_numbers() -> None:
    whole = busy_world().report()
    cut = msgspec.structs.replace(whole, kept_from={"decisions<b>": BEGIN + HOUR})
    said = [page.partition('class="cards"')[0] for page in map(render, (whole, cut))]
    assert ["may have been deleted by its retention" in text for text in said] == [False, True]
    assert "decisions&lt;b&gt;" in said[1]
