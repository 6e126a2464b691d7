"""The playground over HTTP: what it answers, and what it refuses."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from policy import all_systems
from policy.testing import DraftPolicies, evaluate_draft, run_cases
from policy.testing.casefile import parse_cases
from policy.testing.caseyaml import read_case_yaml
from policy.testing.drafts import Draft, DraftRequest
from streaming.console.guard import BURST, HEADERS, MOST_BODY, Rates
from streaming.console.playground import MOST_REQUESTS, load_examples
from tests.console.site import DRAFT, ORIGIN, Site, playground_site

POSTS = ("/playground/evaluate", "/playground/open", "/playground/save")
BODIES: dict[str, Any] = {"/playground/open": {"draft": DRAFT, "number": 0}}
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202e\u0007'\"&{{7*7}}"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with playground_site() as found:
        yield found


def _draft(value: dict[str, Any]) -> Draft:
    requests = tuple(DraftRequest(**one) for one in value["requests"])
    return Draft(value["system"], value["documents"], requests, value.get("at", ""))


def test_there_is_an_example_of_each_language_and_all_its_answers_are_as_wanted() -> None:
    examples = dict(load_examples())
    assert set(examples) == set(all_systems())
    for name, example in examples.items():
        draft = _draft(example)
        policies = DraftPolicies(draft.system, draft.documents)
        evaluation = evaluate_draft(draft, policies)
        assert [one.passed for one in evaluation.answers] == [True] * len(draft.requests), name
        assert {one.outcome for one in evaluation.answers} >= {"allow", "deny"}, name
        assert not [one for one in evaluation.problems if one.level == "error"], name
        results = run_cases(parse_cases(read_case_yaml(policies.case_file(draft.requests))))
        assert all(result.passed for result in results), name


def test_it_evaluates_opens_and_saves(site: Site) -> None:
    found = site.post("/playground/evaluate", DRAFT).json()
    assert [one["outcome"] for one in found["answers"]] == ["deny"]
    opened = site.post("/playground/open", {"draft": DRAFT, "number": 0})
    assert "No statement of the subject comes close" in opened.text
    assert yaml.safe_load(site.post("/playground/save", DRAFT).json()["text"])["system"] == "lenses6"


def test_a_statement_of_cedar_has_its_line() -> None:
    draft = _draft(dict(load_examples())["cedar"])
    lines = draft.documents.split("\n")
    answers = evaluate_draft(draft, DraftPolicies(draft.system, draft.documents)).answers
    decided = [None if answer.line is None else lines[answer.line - 1].strip() for answer in answers]
    assert decided[:3] == ['@id("owner")', '@id("legal-hold")', '@id("staff")']


def test_what_is_no_draft_is_refused(site: Site) -> None:
    refused = site.post("/playground/evaluate", {**DRAFT, "documents": "a: ["})
    assert (refused.status_code, refused.json()["problem"]["line"]) == (200, 1)
    for body in ([], {"system": 1}, {**DRAFT, "unknown": 1}, {**DRAFT, "requests": [{"answer": "maybe"}]}):
        assert site.post("/playground/evaluate", body).status_code == 400
    for number in (-1, 1, 10**30):
        assert site.post("/playground/open", {"draft": DRAFT, "number": number}).status_code == 400


def test_what_is_too_large_is_refused(site: Site) -> None:
    many = {**DRAFT, "requests": DRAFT["requests"] * (MOST_REQUESTS + 1)}
    long_field = {**DRAFT, "requests": [{"subject": "x" * 10_001}]}
    for body in (many, long_field, {**DRAFT, "documents": "#" * 300_000}, {**DRAFT, "documents": "#" * MOST_BODY}):
        assert site.post("/playground/evaluate", body).status_code == 413


@pytest.mark.parametrize("path", POSTS)
def test_a_post_of_another_page_is_refused(site: Site, path: str) -> None:
    body = BODIES.get(path, DRAFT)
    assert site.post(path, body).status_code == 200
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": f"{ORIGIN}.evil.example"},
        {"origin": "http://localhost:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"x_lockkeeper_token": ""},
        {"x_lockkeeper_token": "0" * 64},
        {"x_lockkeeper_token": "ä"},
    ):
        response = site.post(path, body, **headers)
        assert (response.status_code, "answers" in response.text) == (403, False), headers


def test_every_route_that_takes_a_post_is_tested(site: Site) -> None:
    app = site.client.app._app._app  # type: ignore[attr-defined]
    assert {route.path for route in app.routes if "POST" in (route.methods or ())} == set(POSTS)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "[::2]", "a b", "["]
)
def test_a_name_that_only_resolves_to_this_machine_is_refused(site: Site, host: str) -> None:
    assert site.client.get("/playground", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1:8090", "[::1]:8090", "LOCALHOST"])
def test_its_own_names_are_answered(site: Site, host: str) -> None:
    assert site.client.get("/playground", headers={"host": host}).status_code == 200


def test_every_response_has_the_headers_that_keep_other_pages_out(site: Site) -> None:
    policy = HEADERS["content-security-policy"]
    assert "'unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in policy
    paths = ("/", "/playground", "/nothing", "/playground/examples/cedar", "/static/0/console.css", "/playground/save")
    for path in paths:
        response = site.client.get(path)
        assert {name: response.headers.get(name) for name in HEADERS} == HEADERS, path
    assert site.client.get("/playground").headers["cache-control"] == "no-store"
    refused = site.client.get("/playground", headers={"host": "evil.example"})
    assert refused.headers["content-security-policy"] == policy


def test_methods_other_than_get_and_post_are_refused(site: Site) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert site.client.request(method, "/playground", headers={"origin": ORIGIN}).status_code == 405
    assert site.client.get("/playground/evaluate").status_code == 405
    assert site.client.request("TRACE", "/playground").status_code == 403


def test_pages_have_no_script_or_style_of_their_own(site: Site) -> None:
    page = site.client.get("/playground").text
    opened = site.post("/playground/open", {"draft": DRAFT, "number": 0}).text
    for text in (page, opened):
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text), "nothing comes from elsewhere"


def test_hostile_names_are_text(site: Site) -> None:
    role = f"{{kind: Role, name: r, spec: {{statements: [{{effect: allow, action: '*', resource: {HOSTILE!r}}}]}}}}"
    asked = {
        "subject": f"user:{HOSTILE}",
        "action": HOSTILE,
        "resource": f"kafka:topic:a/b/{HOSTILE}",
        "groups": HOSTILE,
    }
    for documents in (DRAFT["documents"], role, HOSTILE):
        draft = {**DRAFT, "documents": documents, "requests": [asked]}
        for path in POSTS:
            response = site.post(path, {"draft": draft, "number": 0} if path.endswith("open") else draft)
            if response.headers["content-type"].startswith("text/html"):
                assert "<script" not in response.text
                assert "<img" not in response.text
                assert "\u202e" not in response.text
                assert "49" not in response.text
            else:
                assert response.headers["content-type"] == "application/json"


def test_a_client_that_asks_too_often_waits() -> None:
    now = [0.0]
    rates = Rates(rate=2.0, burst=3.0, clock=lambda: now[0])
    assert [rates.admit("a") for _ in range(5)] == [True, True, True, False, False]
    assert rates.admit("b")
    now[0] = 0.5
    assert [rates.admit("a") for _ in range(2)] == [True, False]
    now[0] = 1000.0
    assert [rates.admit("a") for _ in range(4)] == [True, True, True, False]


def test_a_flood_is_answered_with_429() -> None:
    with playground_site(Rates(clock=lambda: 0.0)) as own:
        codes = [own.client.get("/playground/actions/cedar").status_code for _ in range(200)]
    admitted = int(BURST) - 1  # one was for the page itself
    assert codes == [200] * admitted + [429] * (200 - admitted)


def test_files_are_kept_by_browsers_and_small(site: Site) -> None:
    page = site.client.get("/playground").text
    addresses = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page))
    sizes = {}
    for address in addresses:
        response = site.client.get(address)
        assert "immutable" in response.headers["cache-control"]
        sizes[address] = int(response.headers["content-length"])
    assert len(page) + sum(sizes.values()) < 40_000, sizes
    address = addresses.pop().split("/")
    assert site.client.get("/".join([*address[:2], "000000000000", address[3]])).status_code == 404
    assert site.client.get("/static/x/..%2f..%2fserver.py").status_code == 404
