"""The playground in a browser, as its users work in it."""

import json
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from policy.testing import load_cases, run_cases
from streaming.console.playground import load_examples
from tests.console.visit import DESK, PHONE, is_too_wide, violations, visit

pytestmark = pytest.mark.long

ROLE = """\
kind: Role
name: mine
spec:
statements:
- {effect: allow, action: "kafka:ListTopic", resource: "kafka:topic:prod/*"}
"""


def _states(page: Page) -> list[str | None]:
    return [row.get_attribute("data-state") for row in page.locator(".request").all()]


def _evaluated(page: Page, text: str) -> None:
    expect(page.locator("#status")).to_have_text(text)


def test_requests_stay_green_or_turn_red_while_one_types(browser: Browser, address: str) -> None:
    with visit(browser, address) as page:
        _evaluated(page, "6 of 6 as wanted.")
        page.locator("#documents").fill(page.locator("#documents").input_value().replace("deny", "allow"))
        _evaluated(page, "5 of 6 as wanted.")
        assert _states(page) == ["pass", "pass", "fail", "pass", "pass", "pass"]
        page.locator("#undo").click()
        _evaluated(page, "6 of 6 as wanted.")


def test_the_first_own_policy_by_keyboard(browser: Browser, address: str) -> None:
    with visit(browser, address) as page:
        _evaluated(page, "6 of 6 as wanted.")
        page.locator("#documents").focus()
        page.keyboard.press("Control+A")
        for line in ROLE.splitlines():
            page.keyboard.type(line)
            page.keyboard.press("Enter")
            if line.startswith("- "):
                break
        assert "spec:\n  statements:\n    - {effect" in page.locator("#documents").input_value()
        page.keyboard.type("---")
        page.keyboard.press("Control+Z")
        for _ in range(6):
            page.get_by_role("button", name="Remove").first.click()
        page.get_by_role("button", name="Add a request").click()
        for text in ("user:dana", "kafka:ListTopic"):
            page.keyboard.type(text)
            page.keyboard.press("Tab")
        page.keyboard.type("deny")
        page.keyboard.press("Tab")
        page.keyboard.type("kafka:topic:prod/main/orders")
        _evaluated(page, "1 of 1 as wanted.")
        page.locator(".answer").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".detail .tree")).to_contain_text("deny: user:dana kafka:ListTopic")


def test_a_click_shows_the_tree_what_is_nearest_and_the_line(browser: Browser, address: str) -> None:
    with visit(browser, address) as page:
        _evaluated(page, "6 of 6 as wanted.")
        page.locator(".answer").nth(2).click()
        detail = page.locator(".detail").nth(2)
        expect(detail).to_contain_text("denied by lenses6/Role/guardrails statement 0")
        expect(detail).to_contain_text("against it")
        expect(page.locator(".gutter .decides")).to_have_text("15")
        detail.get_by_role("button", name="line 15").click()
        selected = page.evaluate("document.getSelection().toString()")
        assert selected.strip() == "- effect: deny"
        page.locator(".answer").nth(2).click()
        expect(detail).to_be_hidden()


@pytest.mark.parametrize("name", [name for name, _ in load_examples()])
def test_each_example_is_as_wanted(browser: Browser, address: str, name: str) -> None:
    number = len(dict(load_examples())[name]["requests"])
    with visit(browser, address) as page:
        page.locator("#example").select_option(name)
        expect(page.locator("#system")).to_have_value(name)
        _evaluated(page, f"{number} of {number} as wanted.")


def test_an_example_that_comes_after_the_next_one_was_chosen_is_not_shown(browser: Browser, address: str) -> None:
    late = list[Route]()
    with visit(browser, address) as page:
        _evaluated(page, "6 of 6 as wanted.")
        page.route("**/playground/examples/cedar", lambda route: late.append(route))
        page.locator("#example").select_option("cedar")
        page.locator("#example").select_option("cdap")
        expect(page.locator("#system")).to_have_value("cdap")
        with page.expect_response("**/playground/examples/cedar"):
            late[0].continue_()
        page.evaluate("fetch('/playground/actions/cedar').then((response) => response.text())")
        assert page.locator("#system").input_value() == "cdap"
        assert page.locator("#example").input_value() == "cdap"


def test_undo_asks_for_the_actions_of_a_system_once(browser: Browser, address: str) -> None:
    asked = list[str]()
    with visit(browser, address) as page:
        _evaluated(page, "6 of 6 as wanted.")
        page.on("request", lambda request: asked.append(request.url))
        for number in range(3):
            page.get_by_role("button", name="Add a request").click()
            expect(page.locator(".request")).to_have_count(7 + number)
        for _ in range(3):
            page.keyboard.press("Control+Z")
        expect(page.locator(".request")).to_have_count(6)
        _evaluated(page, "6 of 6 as wanted.")
    assert asked
    assert not [url for url in asked if "/actions/" in url]


def test_undo_goes_back_over_thirty_states(browser: Browser, address: str) -> None:
    with visit(browser, address) as page:
        _evaluated(page, "6 of 6 as wanted.")
        before = page.locator("#documents").input_value()
        page.locator("#documents").fill(f"{before}# typed\n")
        for number in range(31):
            page.get_by_role("button", name="Add a request").click()
            expect(page.locator(".request")).to_have_count(7 + number)
        for _ in range(32):
            page.keyboard.press("Control+Z")
        assert page.locator("#documents").input_value() == before
        expect(page.locator(".request")).to_have_count(6)
        expect(page.locator("#undo")).to_be_disabled()
        for _ in range(32):
            page.keyboard.press("Control+Shift+Z")
        expect(page.locator(".request")).to_have_count(37)
        assert page.locator("#documents").input_value() == f"{before}# typed\n"


def test_a_link_shares_all_of_it_and_no_server_has_it(browser: Browser, address: str) -> None:
    with visit(browser, address) as page:
        page.locator("#example").select_option("cedar")
        _evaluated(page, "5 of 5 as wanted.")
        page.locator('[name="subject"]').first.fill('User::"ö<b>"')
        _evaluated(page, "4 of 5 as wanted.")
        page.get_by_role("button", name="Copy link").click()
        expect(page.locator("#status")).to_contain_text("Link copied")
        link = page.evaluate("navigator.clipboard.readText()")
    requested: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.on("request", lambda request: requested.append(request.url))
    page.goto(link)
    _evaluated(page, "4 of 5 as wanted.")
    assert page.locator('[name="subject"]').first.input_value() == 'User::"ö<b>"'
    assert link.partition("#")[2].startswith("p=")
    assert not [url for url in requested if link.partition("#")[2] in url.partition("#")[0]]
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
    assert context.cookies() == []
    context.close()


@pytest.mark.parametrize("fragment", ["p=AAAA", "p=____", "p=" + "A" * 5000, "p=q1YqLkksKVayUkpUqgUA"])
def test_a_damaged_link_is_said_to_be_one(browser: Browser, address: str, fragment: str) -> None:
    with visit(browser, f"{address}#{fragment}") as page:
        expect(page.locator("#status")).to_contain_text("The link is damaged or not whole")
        expect(page.locator("#status")).to_contain_text("6 of 6 as wanted.")
        page.get_by_role("button", name="Add a request").click()
        _evaluated(page, "6 of 7 as wanted.")


def test_what_is_saved_is_a_case_file_for_policy_test(browser: Browser, address: str, tmp_path: Path) -> None:
    with visit(browser, address) as page:
        _evaluated(page, "6 of 6 as wanted.")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as case file").click()
        saved = tmp_path / download.value.suggested_filename
        download.value.save_as(saved)
    results = run_cases(load_cases(saved))
    assert all(result.passed for result in results)
    assert len(results) == 9  # three documents and six requests


def test_all_of_the_documents_are_printed(browser: Browser, address: str) -> None:
    with visit(browser, address) as page:
        long = "".join(f"# line {number}\n" for number in range(300))
        page.locator("#documents").fill(long)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.locator("#printed").inner_text().strip() == long.strip()
        expect(page.locator("#documents")).to_be_hidden()


def test_files_are_opened(browser: Browser, address: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Role\nname: a\nspec: {statements: []}\n", encoding="utf-8")
    (tmp_path / "b.yaml").write_text("kind: Role\nname: b\nspec: {statements: [}\n", encoding="utf-8")
    with visit(browser, address) as page:
        _evaluated(page, "6 of 6 as wanted.")
        page.locator("#files").set_input_files([tmp_path / "a.yaml", tmp_path / "b.yaml"])
        expect(page.locator("#status")).to_contain_text("Not evaluated: line 7: not YAML")
        page.locator("#problems").get_by_role("button", name="line 7").click()
        assert page.evaluate("document.getSelection().toString()") == "spec: {statements: [}"
        assert _states(page) == ["pass"] * 6, "answers of before stay, dimmed"


def test_twenty_requests_are_evaluated_after_each_keystroke(browser: Browser, address: str) -> None:
    script = """async (text) => {
      const row = document.querySelectorAll(".request")[19], began = performance.now();
      const done = new Promise((resolve) => new MutationObserver((_, observer) => {
        if (row.querySelector(".message").textContent.includes(text)) (observer.disconnect(), resolve());
      }).observe(row, { subtree: true, childList: true, characterData: true }));
      const input = row.querySelector('[name="resource"]');
      input.value = `kafka:topic:prod/main/${text}`;
      input.dispatchEvent(new Event("input", { bubbles: true }));
      await done;
      return performance.now() - began;
    }"""
    with visit(browser, address) as page:
        _evaluated(page, "6 of 6 as wanted.")
        for _ in range(14):
            page.get_by_role("button", name="Duplicate").first.click()
        _evaluated(page, "20 of 20 as wanted.")
        times = sorted(page.evaluate(script, f"orders-{number}") for number in range(20))
    print(json.dumps({"median_ms": statistics.median(times), "most_ms": times[-1]}))
    assert len(times) == 20


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")], ids=["desk-light", "phone-dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(
    browser: Browser, address: str, size: dict[str, int], scheme: str
) -> None:
    with visit(browser, address, size, scheme) as page:
        _evaluated(page, "6 of 6 as wanted.")
        page.locator(".answer").nth(2).click()
        expect(page.locator(".detail .tree")).to_be_visible()
        page.locator('[name="subject"]').first.fill("x" * 300)
        page.locator('[name="more"]').nth(1).evaluate("(input) => (input.value = '[')")
        _evaluated(page, "5 of 6 as wanted.")
        assert violations(page) == []
        assert not is_too_wide(page)


def test_hostile_texts_are_shown_and_do_nothing(browser: Browser, address: str) -> None:
    hostile = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>\u202eabc"
    with visit(browser, address) as page:
        page.locator("#documents").fill(f"kind: Role\nname: '{hostile.replace(chr(39), '')}'\nspec: {{{hostile}: 1}}\n")
        page.locator('[name="subject"]').first.fill(f"user:{hostile}")
        page.locator('[name="resource"]').first.fill(f"kafka:topic:{hostile}" + "x" * 9000)
        page.locator(".answer").first.click()
        expect(page.locator(".detail").first).to_be_visible()
        page.wait_for_timeout(50)
        assert page.title() == "Playground · lockkeeper"
        assert page.locator("main img, main script").count() == 0
