"""What the fuzzer found stays found, a short round finds nothing, and the fuzzer itself notices what it should."""

import os
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import Make, draw, fuzz, run
from tests.fuzz.harness import Execution, Violation, check, decode, encode, smaller
from tests.fuzz.targets import TARGETS

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))
SEED = "test"
DRAWN = 6  # inputs, or groups of records, of each target


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_a_case_that_was_found_passes(path: Path) -> None:
    """Each case failed once; its file says how."""
    case = decode(path.read_text())
    assert case["about"]
    make = next(make for make in TARGETS if make.name == case["target"])
    assert check(make(SEED), case["input"]).finding is None


@pytest.mark.parametrize(
    ("name", "seed", "number"),
    [
        ("requests", "05e27f6a", 3362),  # a mutation made the request a text before it was amplified
        ("decisions", "05e27f6a", 58600),  # the same
        ("policy-files", "05e27f6a", 1461),  # a date of a case file was not plain data
        ("patterns", "f1e2d3c4", 25347),  # the naive matcher took 80 s for a glob of 60,000 characters
    ],
)
def test_an_input_with_which_the_fuzzer_ended_passes(name: str, seed: str, number: int) -> None:
    """Each ended the process of its target by a fault of the fuzzer, and with it all inputs after it."""
    make = next(make for make in TARGETS if make.name == name)
    assert fuzz(make(seed), seed, range(number, number + 1)).findings == []


@pytest.mark.long  # a process for each of the targets
@pytest.mark.parametrize("make", TARGETS, ids=lambda make: make.name)
def test_a_short_round_finds_nothing(make: Make) -> None:
    report = fuzz(make(SEED), SEED, range(DRAWN), minimal=False)
    assert report.findings == []
    assert report.inputs == DRAWN * make.records
    assert report.past > 0


@pytest.mark.parametrize("make", TARGETS, ids=lambda make: make.name)
def test_the_same_seed_makes_the_same_inputs(make: Make) -> None:
    """Also in another order; and another seed makes others."""
    first, again = make(SEED), make(SEED)
    drawn = [encode(draw(first, SEED, number)) for number in range(3)]
    assert [encode(draw(again, SEED, number)) for number in (2, 1, 0)][::-1] == drawn
    assert [encode(draw(again, "other", number)) for number in range(3)] != drawn
    for text in drawn:
        assert encode(decode(text)) == text


class _Faulty:
    """A target with one fault of its own."""

    name, share, records = "faulty", 1, 1

    def __init__(self, seed: str) -> None:
        self._kept: list[bytes] = []

    def portable(self, given: Any) -> Any:
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        return {"number": number, "text": dice.randbytes(20) + b"x"}

    def run(self, given: Any) -> Execution:
        raise NotImplementedError


class _Crashing(_Faulty):
    def run(self, given: Any) -> Execution:
        return Execution(given["text"].index(b"none"))


class _Wrong(_Faulty):
    def run(self, given: Any) -> Execution:
        if b"x" in given["text"]:
            raise Violation("wrong: there is an x")
        return Execution()


class _Slow(_Faulty):
    def run(self, given: Any) -> Execution:
        began = time.thread_time()
        while time.thread_time() < began + 0.01:
            pass
        return Execution()


class _Growing(_Faulty):
    def run(self, given: Any) -> Execution:
        self._kept.append(b"x" * (3 << 20))
        return Execution()


class _Hanging(_Faulty):
    def run(self, given: Any) -> Execution:
        while given["number"] == 3:
            pass
        return Execution()


class _Dying(_Faulty):
    def run(self, given: Any) -> Execution:
        if given["number"] == 3:
            os._exit(9)
        return Execution()


@pytest.mark.parametrize(("make", "sort"), [(_Crashing, "crash"), (_Wrong, "wrong"), (_Slow, "slow")])
def test_an_input_that_fails_is_reported_with_its_number_and_made_small(
    make: Make, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.harness.FIXED_SECONDS", 0.005)
    monkeypatch.setattr("tests.fuzz.harness.SECONDS_A_BYTE", 0.0)
    found = fuzz(make("s"), "s", range(5), most=1).findings
    assert [(one["number"], one["sort"]) for one in found] == [(0, sort)]
    assert len(decode(found[0]["input"])["input"].get("text", b"")) <= (1 if sort != "slow" else 21)


def test_memory_that_grows_is_reported() -> None:
    assert [one["sort"] for one in fuzz(_Growing("s"), "s", range(60)).findings] == ["memory"]


@pytest.mark.parametrize("make", [_Hanging, _Dying])
def test_an_input_that_hangs_or_ends_the_process_is_reported_with_its_number(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "HANG_SECONDS", 4.0)  # of which a slow machine takes more than one to start
    [report] = run((make,), "s", 10)
    assert [(one["number"], one["sort"]) for one in report.findings] == [(3, "hang")]


def test_an_input_is_made_smaller_for_as_long_as_it_fails_alike() -> None:
    target = _Wrong("s")
    given = {"number": 1, "text": b"aaaxbbb", "more": [1, 2]}
    finding = check(target, given).finding
    assert finding is not None
    assert smaller(target, given, finding) == {"text": b"x"}
