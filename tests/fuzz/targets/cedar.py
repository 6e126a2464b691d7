"""Cedar texts by grammar, with long chains: each in a process of its own, for the native parser may end it."""

import faulthandler
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import cedarpy

from policy import compile_documents, decide
from policy.analysis import compare
from policy.systems.cedar.text import TOKEN
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import mutate_bytes

LENGTHS = (0, 1, 2, 5, 16, 17, 40, 400)
LONG = (1100, 3000, 40_000, 130_000)
LONG_ONE_OF = 4  # inputs: the others have no long chain
SECONDS = 60.0  # for a process to answer
GAPS = ("", " ", "\n", "\t ", "// a; b }\n", ' // "\n')
REQUEST = {
    "id": "r",
    "system": "cedar",
    "subject": {"type": "User", "id": "ann"},
    "action": {"name": "read"},
    "resource": {"type": "Doc", "id": "plan"},
}
ASKED = {
    "principal": {"type": "User", "id": "ann"},
    "action": {"type": "Action", "id": "read"},
    "resource": {"type": "Doc", "id": "plan"},
    "context": {},
}

INDEX = '["a"]'
Chain = Callable[[str, int], str]
CHAINS: tuple[Chain, ...] = (
    *(lambda inner, n, mark=mark: f"{inner}{f' {mark} true' * n}" for mark in ("&&", "||")),
    *(lambda inner, n, mark=mark: f"{inner} && 1{f' {mark} 1' * n} == 1" for mark in "+-*"),
    lambda inner, n: f"{inner} && principal{'.a' * n} == 1",
    lambda inner, n: f"{inner} || principal has a{'.a' * n}",
    lambda inner, n: f"{inner} && principal{INDEX * n} == 1",
    lambda inner, n: f"principal{'.contains(1)' * n} || {inner}",
    lambda inner, n: f'{inner} || "a" like "{"a*" * n}"',
    lambda inner, n: f"{inner} && [{'1, ' * n}1].contains(1)",
    lambda inner, n: f"{'(' * n}{inner}{')' * n}",
    lambda inner, n: f"{'!(' * n}{inner}{')' * n}",
    lambda inner, n: f"{'!' * n}{inner}",
    lambda inner, n: f"{'if true then true else ' * n}{inner}",
    lambda inner, n: f"{'[' * n}{']' * n} == 1 || {inner}",
    lambda inner, n: f"{'{a: ' * n}1{'}' * n} == 1 || {inner}",
    lambda inner, n: f'{inner} || principal == {"A::" * n}B::"x"',
    lambda inner, n: f'{inner} || "{"- " * n}" == "a"',
)
ATOMS = (
    *("true", "false", "1 == 1", 'principal == User::"ann"', 'resource in Doc::"plan"', "principal is User"),
    *('"a b" == "a  b"', '"a\n" == "a "', "resource has a.b", 'ip("10.0.0.1").isIpv4()', "context.a == 1"),
)
SCHEMAS: tuple[Callable[[int], str], ...] = (
    lambda n: f"entity User {{a: {'Set<' * n}Long{'>' * n}}};",
    lambda n: f"entity User {{a: {'{a: ' * n}Long{'}' * n}}};",
    lambda n: "".join(f"entity U{k} in [U{k + 1}];" for k in range(n)) + f"entity U{n};",
    lambda n: "".join(f"action a{k} in [a{k + 1}];" for k in range(n)) + f"action a{n};",
    lambda n: f"entity User in [{'A::' * n}B];",
    lambda n: "".join(f"type T{k} = T{k + 1};" for k in range(n)) + f"type T{n} = Long;",
)


class CedarTexts:
    """See the module. Beside an input another document stays good, and the answer is that of the library alone."""

    name, share, records = "cedar-texts", 4, 1

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A text; ``gaps``: the seed of other blanks and comments."""
        lengths = LONG if number % LONG_ONE_OF == 0 else LENGTHS
        if dice.randrange(6) == 0:
            return {"schema": dice.choice(SCHEMAS)(min(dice.choice(lengths), 20_000))}
        policies, chains = (
            (1, 1) if lengths is LONG else (dice.randint(1, 3), dice.randint(0, 2))
        )  # nothing else is deep
        text = "\n".join(_policy(dice, lengths, chains) for _ in range(policies))
        if not deep:
            text = mutate_bytes(dice, text.encode()).decode(errors="replace")
        return {"policies": text, "gaps": dice.randrange(1 << 30), "whole": deep}

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(given, there))
        process.start()
        there.close()
        try:
            answered = here.poll(SECONDS)
            found = here.recv() if answered else None
        except EOFError:
            found = None
        finally:
            process.kill()
            process.join()
            here.close()
        if found is None:
            raise Violation(f"died: {process.exitcode}, or no answer within {SECONDS:.0f} s")
        if isinstance(found, str):
            raise Violation(found)
        return Execution(*found)


def _policy(dice: Random, lengths: tuple[int, ...], chains: int) -> str:
    condition = dice.choice(ATOMS)
    for _ in range(chains):
        condition = dice.choice(CHAINS)(condition, dice.choice(lengths))
    note = dice.choice(("", '@id("x")', '@note("a  b")'))
    scope = dice.choice(("principal", 'principal == User::"ann"', 'principal in Group::"g"', "principal is User"))
    clause = dice.choice(("when", "when", "unless"))
    return f"{note}{dice.choice(('permit', 'forbid'))}({scope}, action, resource) {clause} {{ {condition} }};"


def _spaced(dice: Random, text: str) -> str:
    """With other blanks and comments between the tokens: between words at least one blank."""
    return "".join(
        dice.choice(GAPS[1:]) if token.lastgroup == "blank" else f"{token[0]}{_gap(dice, token)}"
        for token in TOKEN.finditer(text)
    )


def _gap(dice: Random, token: Any) -> str:
    is_part = token[0] == "/" or token[0].isalnum()  # of a comment, or of a number
    return dice.choice(GAPS) if token.lastgroup in ("mark", "text") and not is_part else ""


def _child(given: Any, there: Connection) -> None:
    faulthandler.disable()  # of pytest: a process that dies is a finding, not the end of the tests
    try:
        there.send(tuple(_execution(given)))
    except Violation as violation:
        there.send(str(violation))
    there.close()


def _execution(given: Any) -> Execution:
    kind, field = ("Schema", "schema") if "schema" in given else ("PolicySet", "policies")
    spec = {field: given.get(field)}
    other = _document("PolicySet", "other", {"policies": "forbid(principal is Nobody, action, resource);"})
    snapshot = compile_documents([_document(kind, "drawn", spec), other])
    refused = {rejected.key: rejected.errors for rejected in snapshot.rejected}
    if "cedar/PolicySet/other" in refused:
        raise Violation(f"other: a document beside it is refused: {refused}")
    if refused or kind == "Schema":
        return Execution(1, bool(refused))
    spaced_text = _spaced(Random(given.get("gaps", 0)), given["policies"])
    spaced = compile_documents([_document(kind, "drawn", {"policies": spaced_text}), other])
    if spaced.rejected or compare(snapshot, spaced):
        raise Violation(f"spaced: blanks and comments are a difference: {spaced.rejected}"[:500])
    outcome, answer = decide(snapshot, REQUEST).outcome, cedarpy.is_authorized(ASKED, given["policies"], [])
    if outcome != "error" and (outcome == "allow") != answer.allowed:
        raise Violation(f"allow: {outcome}, and the library alone says {answer.decision}")
    if given.get("whole"):
        _compare_blanks(given["policies"], snapshot)
    return Execution(allows=int(answer.allowed))


def _compare_blanks(text: str, snapshot: Any) -> None:
    """A blank more in a string of a condition is a difference."""
    longer = text.replace('"a b" ==', '"a   b" ==')
    if longer != text and not compare(
        snapshot, compile_documents([_document("PolicySet", "drawn", {"policies": longer})])
    ):
        raise Violation("blank: a blank more in a string is no difference")


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"system": "cedar", "kind": kind, "name": name, "spec": spec}
