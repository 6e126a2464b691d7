"""The case files of tests/cases are the specification: they hold, completely, and by both evaluators."""

import functools
import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
import yaml

from policy.evaluation import reference
from policy.evaluation.authorize import decide
from policy.systems import all_systems, packages
from policy.systems.kit.engine import engine_of
from policy.testing.casefile import CaseFile, Stage, load_cases
from policy.testing.run import Result, run_cases, scenes

FOLDER = Path(__file__).parent.parent / "cases"
FILES = sorted(FOLDER.glob("*.yaml"))


def by_name(path: Path) -> str:
    """The test's id."""
    return path.stem


def check(results: Sequence[Result]) -> None:
    """Fail with one line for each result that is not as expected."""
    wrong = [f"{r.case} [stage {r.stage}] {r.subject}: {r.why}" for r in results if not r.passed]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


@pytest.fixture(scope="module", params=FILES, ids=by_name)
def case_file(request: pytest.FixtureRequest) -> CaseFile:
    """Each case file in turn."""
    return load_cases(request.param)


def test_every_expectation_holds(case_file: CaseFile) -> None:
    """Documents are accepted or refused, and requests answered, as each case says."""
    check(run_cases(case_file))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_documents_changes_nothing(case_file: CaseFile, seed: int) -> None:
    """With a stage's documents shuffled every expectation still holds."""
    chance = random.Random(seed)

    def shuffled(stage: Stage) -> Stage:
        apply, facts = (chance.sample(documents, len(documents)) for documents in (stage.apply, stage.facts))
        return msgspec.structs.replace(stage, apply=apply, facts=facts)

    cases = [msgspec.structs.replace(case, stages=list(map(shuffled, case.stages))) for case in case_file.cases]
    check(run_cases(msgspec.structs.replace(case_file, cases=cases)))


def test_the_slow_evaluator_answers_alike(case_file: CaseFile) -> None:
    """`policy.evaluation.reference` gives the very outcome of `decide`, batch by batch and item by item."""
    asked = 0
    for scene in scenes(case_file):
        for expectation in scene.stage.expect:
            request, trust = scene.request(expectation), scene.trust
            fast = decide(scene.snapshot, request, trust=trust)
            slow = reference.decide(scene.snapshot, request, trust=trust)
            batch = [item.outcome for item in fast.evaluations]
            assert slow == (batch or fast.outcome), f"{scene.case.case}: {request}"
            asked += 1
    assert asked, "a case file that asks nothing shows nothing"


def test_an_answer_explains_itself(case_file: CaseFile) -> None:
    """Every decision has a reason, and a deny names what is missing."""
    for scene in scenes(case_file):
        for expectation in scene.stage.expect:
            decision = decide(scene.snapshot, scene.request(expectation), trust=scene.trust)
            for part in decision.evaluations or (decision,):
                assert part.reasons, scene.case.case
                assert all(reason.message for reason in part.reasons), scene.case.case
                # An engine's policies name no permission that is missing.
                assert part.missing or part.outcome != "deny" or engine_of(all_systems().get(scene.system)), (
                    scene.case.case
                )


@functools.cache
def shown() -> frozenset[tuple[str, bool]]:
    """(rule or question, for or against) of every expectation of every case file."""
    results = (result for path in FILES for result in run_cases(load_cases(path)))
    return frozenset((rule, sign) for result in results for rule in result.rules for sign in result.signs)


@pytest.mark.parametrize("system", all_systems())
def test_every_rule_has_a_case_for_it_and_a_case_against(system: str) -> None:
    """Each rule id of the system's specification is shown by an allow or acceptance, and by the contrary."""
    rules = {
        rule["id"]: rule["text"]
        for rule in yaml.safe_load(files(packages()[system]).joinpath("rules.yaml").read_text())
    }
    assert rules
    assert all(rules.values())
    assert not {rule for rule in rules if (rule, True) not in shown()}, "rules without a positive case"
    assert not {rule for rule in rules if (rule, False) not in shown()}, "rules without a negative case"
