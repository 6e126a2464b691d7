"""`policy.decide` of plain data, as the Python API takes it, against the reference; twice, for the caches."""

from random import Random
from typing import Any

from policy import decide
from policy.core.request import Batch, MalformedRequest, parse_request
from policy.evaluation import reference
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import mutate_data
from tests.fuzz.samples import system_of, words
from tests.fuzz.targets.judged import Outcomes, Worlds, by_reference, compare
from tests.fuzz.targets.requests import TRUSTS, draw_request


class Decisions:
    """See the module."""

    name, share, records = "decisions", 130, 1

    def __init__(self, seed: str) -> None:
        self._worlds = Worlds(f"{seed} {self.name}")

    def portable(self, given: Any) -> Any:
        """The input without what comes from the seed."""
        return self._worlds.portable(given)

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A request; one that is not deep is changed anywhere."""
        block = self._worlds.number_of(number)
        world = self._worlds.get(block)
        request = draw_request(dice, world, number)
        if not deep:
            request = mutate_data(dice, request, words(system_of(world.sample)), times=3)
        return {"world": block, "trust": sorted(dice.choice(TRUSTS)), "request": request}

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        snapshot, trust, request = (
            self._worlds.get(given["world"]).snapshot,
            frozenset(given["trust"]),
            given["request"],
        )
        decision = decide(snapshot, request, trust=trust)
        if decide(snapshot, request, trust=trust) != decision:
            raise Violation("otherwise: asked again, it is answered otherwise")
        found: Outcomes = decision.outcome, *(item.outcome for item in decision.evaluations)
        reasons = [reason for part in (decision, *decision.evaluations) for reason in part.reasons]
        if bugs := [reason for reason in reasons if reason.code == "internal-error"]:
            raise Violation(f"internal-error: {bugs[0].message}")
        try:
            asked = parse_request(request)
        except MalformedRequest:
            compare(found, ("error",), set())
            return Execution(False, True)
        wanted = by_reference(snapshot, asked, trust)
        if not isinstance(asked, Batch) and wanted[0] != reference.decide(snapshot, request, trust=trust):
            raise Violation("otherwise: the reference differs from itself")
        compare(found, wanted, {reason.code for reason in reasons})
        return Execution(True, "error" in wanted, wanted.count("allow"))
