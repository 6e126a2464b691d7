"""Requests without anything in common, for one evaluator: what it keeps of them is bounded."""

from random import Random
from typing import Any

from policy.core.caching import BUDGET
from policy.core.request import CLAIMS
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.enforcer.source import Records
from streaming.settings import Limits
from tests.bench import workload
from tests.fuzz.harness import Execution
from tests.fuzz.mutation import to_json
from tests.fuzz.samples import Sample, build
from tests.fuzz.targets.judged import AT, READ
from tests.stream.arrow import records_at

SIZE = 20_000  # characters of what a request has of its own
DOCUMENTS = 50
CACHED_BYTES = 8 << 20
PLACES = ("resource", "context", "subject", "subject", "action", "system", "id")  # what is kept of groups weighs most


class Memory:
    """See the module. The campaign measures."""

    name, share, records = "memory", 3, 1

    def __init__(self, seed: str) -> None:
        documents = tuple(workload.documents(DOCUMENTS))
        self._world = build(Sample(documents, (), (), ()))
        self._requests = list(workload.requests(documents, 100))
        self._evaluator = Evaluator(self._world.snapshot, Limits(), 100)
        BUDGET.most = CACHED_BYTES  # of this process, which is the target's own

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A request with a long text somewhere."""
        request = dice.choice(self._requests)
        own = f"{number}-{dice.randrange(10**9)}"
        place = dice.choice(PLACES)
        text = own * (SIZE // len(own))
        if place == "context":
            request = {**request, "context": {own: text}}
        elif place in ("system", "id"):
            request = {**request, place: text}
        elif place == "subject":
            groups = [f"{own}-{n}" for n in range(1, 1000)] if deep else [text]
            request = {**request, "subject": {**request["subject"], "properties": {"groups": groups}}}
        else:
            field = "name" if place == "action" else "id"
            request = {**request, place: {**request[place], field: f"{request[place][field]}/{text}"}}
        return to_json(dice, request)

    def run(self, given: Any) -> Execution:
        """Never fails itself."""
        source = Source("requests", 0, "topic-id", CLAIMS, 1)
        context = EvaluationContext(self._world.snapshot.version, READ, 7, READ, AT)
        self._evaluator.for_partition(source, context).decide_all(Records(records_at([(b"k", given, None, AT)])))
        return Execution()
