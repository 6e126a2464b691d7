"""Decides what untrusted clients send in a process of its own, and prints how many MiB that leaves there.

python -m tests.stream.memory_process MiB-that-caches-may-hold SCENARIO…
"""

import gc
import itertools
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from policy import compile_documents
from policy.core.caching import BUDGET
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.enforcer.source import Records
from streaming.settings import DEFAULT_TRUST, Limits
from tests.stream.arrow import AT, Sent, records_batch
from tests.stream.world import group, role

LARGE, LARGE_BYTES = 40, 900_000
FEW = 8  # of them, where no more is said by more
PERMITTED = 1_000  # groups that a request may claim
SMALL, BATCH = 2_000, 500
DOCUMENTS = [role("open", "kafka:topic:prod/main/*", "kafka:topic:*"), group("open", "user:dana")]
ACTIONS = {
    "lenses5": ("topic", "kafka.topic.view-data"),
    "ververica": ("Deployment", "read"),
    "streamsets": ("job", "job.view"),
    "cdap": ("namespace", "namespace.get"),
}


def _request(number: int, system: str = "lenses6", **parts: Any) -> dict[str, Any]:
    type_, action = ACTIONS.get(system, ("lrn", "kafka:GetTopicDetails"))
    resource = f"kafka:topic:prod/main/orders-{number}" if system == "lenses6" else f"{type_}:n{number}"
    return {
        "id": f"r-{number}",
        "system": system,
        "subject": {"type": "user", "id": "user:dana" if system == "lenses6" else "dana"},
        "action": {"name": action},
        "resource": {"type": type_, "id": resource},
        **parts,
    }


def _claiming(number: int, groups: int, claim: str = "groups", **more: Any) -> dict[str, Any]:
    """A large request with so many distinct groups."""
    length = LARGE_BYTES // groups
    names = [f"{number}-{n}-".ljust(length, "x") for n in range(groups)]
    subject = {**_request(number, **more)["subject"], "properties": {claim: names}}
    return _request(number, subject=subject, **more)


def _many_groups() -> Iterator[dict[str, Any]]:
    return (_claiming(number, 15_000) for number in range(LARGE))


def _long_groups() -> Iterator[dict[str, Any]]:
    """As many as a request may claim, so each is long."""
    return (_claiming(number, PERMITTED) for number in range(FEW))


def _roles_elsewhere() -> Iterator[dict[str, Any]]:
    return (
        _claiming(number, PERMITTED, claim, system=system)
        for system in ACTIONS
        for claim in ("groups", "roles")
        for number in range(2)
    )


def _long_names() -> Iterator[dict[str, Any]]:
    for number in range(FEW):
        text = f"{number}".ljust(LARGE_BYTES, "x")
        yield _request(number, subject={"type": "user", "id": f"user:{text}"})
        yield _request(number, action={"name": f"kafka:{text}"})
        yield _request(number, resource={"type": "lrn", "id": f"kafka:topic:{text}/main/orders"})
        yield _request(number, resource={"type": "lrn", "id": f"kafka:topic:prod/main/{text}"})


def _short_names() -> Iterator[dict[str, Any]]:
    """Each twice, for what is only worth keeping when it comes again."""
    for start in range(0, SMALL, BATCH):
        for _ in range(2):
            for number in range(start, start + BATCH, 5):
                yield _request(number, subject={"type": "user", "id": f"user:dana-{number}"})
                yield _request(number, action={"name": f"kafka:Get{number}"})
                yield _request(number, resource={"type": "lrn", "id": f"kafka:topic:prod/m{number}/orders-{number}"})
                yield _request(number, subject={"type": "user", "id": "user:dana", "properties": {"a": number}})
                groups = [f"g{number}-{n}" for n in range(20)]
                yield _request(number, subject={"type": "user", "id": "user:dana", "properties": {"groups": groups}})


SCENARIOS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    made.__name__.strip("_"): made for made in (_many_groups, _long_groups, _roles_elsewhere, _long_names, _short_names)
}


def _run(requests: Iterator[dict[str, Any]], evaluator: Evaluator) -> None:
    """Through the job's worker, as far as it is Python."""
    source = Source("requests", 3, "topic-id", DEFAULT_TRUST, 1)
    while asked := list(itertools.islice(requests, BATCH)):
        sent: list[Sent] = [(None, json.dumps(request).encode(), None) for request in asked]
        evaluator.for_partition(source, EvaluationContext("v", {}, 7, {}, AT)).decide_all(
            Records(records_batch(sent, AT))
        )


def main(held_mib: str, *scenarios: str) -> None:
    """Print the growth by each."""
    BUDGET.most = int(held_mib) << 20
    evaluator = Evaluator(compile_documents(DOCUMENTS), Limits())
    _run(iter([_request(1)]), evaluator)  # what is loaded at first use
    gc.collect()
    tracemalloc.start()
    for scenario in scenarios:
        before, _ = tracemalloc.get_traced_memory()
        _run(SCENARIOS[scenario](), evaluator)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        print(scenario, round((after - before) / (1 << 20), 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
