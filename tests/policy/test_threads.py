"""A snapshot is safe to share between threads, whatever each of them finds unfilled."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

import policy
from policy.core import caching
from policy.core.decision import Decision
from policy.matching import index
from policy.store.snapshot import Snapshot
from policy.testing.casefile import load_cases
from policy.testing.run import scenes
from tests.examples import examples
from tests.policy.test_cases import FILES, by_name

THREADS = 8
ROUNDS = examples(50)
ROLES = 6
SUBJECTS = tuple(f"user:u{number}" for number in range(THREADS))


@pytest.fixture(autouse=True)
def hurried() -> Iterator[None]:
    """Threads change places as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as threads:
        yield threads


def together(pool: ThreadPoolExecutor, ask: Callable[[int], Any]) -> list[Any]:
    """What `ask` returns to each thread by its number, all of them beginning at once."""
    barrier = Barrier(THREADS)

    def begin(number: int) -> Any:
        barrier.wait(timeout=30)
        return ask(number)

    return list(pool.map(begin, range(THREADS)))


def _document(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"system": "lenses6", "kind": kind, "name": name, "spec": spec}


def _statement(effect: str, action: str, resource: str) -> dict[str, Any]:
    return {"effect": effect, "action": action, "resource": resource}


def _documents() -> list[dict[str, Any]]:
    """Roles that allow everything, and deny what is below "secret" after many other statements."""
    others = [_statement("allow", f"kafka:List{letter}*", f"kafka:topic:a/b/{letter}*") for letter in "CDEFGHIJKL"]
    denied = [_statement("deny", "kafka:*", f"kafka:topic:a/{part}/*") for part in ("secret", "hidden")]
    roles = [
        _document("Role", f"r{n}", statements=[_statement("allow", "*", "*"), *others, *denied]) for n in range(ROLES)
    ]
    named = [f"r{n}" for n in range(ROLES)]
    return [*roles, _document("Group", "g", roles=named, members=list(SUBJECTS))]


def _requests(subject: str) -> list[dict[str, Any]]:
    fields = {"id": "r", "system": "lenses6", "subject": {"type": "user", "id": subject}, "time": 1}
    return [
        {**fields, "action": {"name": action}, "resource": {"type": "lrn", "id": f"kafka:topic:a/{part}/t"}}
        for action in ("kafka:ListTopic", "kafka:DeleteTopic")
        for part in ("secret", "open", "hidden")
    ]


@pytest.mark.parametrize(
    "small", [False, pytest.param(True, marks=pytest.mark.long)], ids=["as it is", "with caches that overflow"]
)
def test_threads_that_share_a_snapshot_get_what_one_gets(
    pool: ThreadPoolExecutor, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round has a new snapshot, whose caches all threads fill; what they leave behind is right too."""
    if small:
        monkeypatch.setattr(caching.BUDGET, "most", 2_000)
        monkeypatch.setattr(index, "STATES_KEPT", 8)
    documents = _documents()
    requests = [_requests(subject) for subject in SUBJECTS]
    expected = [[policy.decide(policy.compile_documents(documents), one) for one in mine] for mine in requests]
    assert {decision.outcome for mine in expected for decision in mine} == {"allow", "deny"}
    store = policy.DocumentStore()
    for document in documents:
        store.put(document)
    for _ in range(ROUNDS):
        shared = Snapshot(store)

        def ask(number: int, shared: Snapshot = shared) -> list[Decision]:
            return [policy.decide(shared, one) for one in requests[number]]

        assert together(pool, ask) == expected
        assert list(map(ask, range(THREADS))) == expected, "the snapshot stays right"


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_threads_agree_on_every_case(path: Any, pool: ThreadPoolExecutor) -> None:
    """Of every system: all threads ask a new snapshot the same at once."""
    for scene in scenes(load_cases(path)):
        requests, trust = [scene.request(one) for one in scene.stage.expect], scene.trust
        if requests:

            def ask(_: int, scene: Any = scene, requests: Any = requests, trust: Any = trust) -> list[Decision]:
                return [policy.decide(scene.snapshot, one, trust=trust) for one in requests]

            first, *others = together(pool, ask)
            assert all(other == first for other in others)
            assert ask(0) == first


FIRST_REQUESTS = """
import sys, threading
from policy import all_systems, compile_documents, decide
sys.setswitchinterval(1e-6)
snapshot, barrier, outcomes = compile_documents([]), threading.Barrier(8), []
part = {"type": "job", "id": "job:j"}
subject, action = {"type": "user", "id": "u"}, {"name": "job.start"}
asked = {"id": "r", "subject": subject, "action": action, "resource": part, "time": 1}
def ask():
    barrier.wait()
    outcomes.extend(decide(snapshot, {**asked, "system": system}).outcome for system in all_systems())
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(outcomes) == 8 * len(all_systems()) and "allow" not in outcomes
"""


def test_the_first_requests_of_a_process_may_come_in_several_threads() -> None:
    """Without `prepare_types` most of these processes end with a segmentation fault, in msgspec."""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", FIRST_REQUESTS], check=True, timeout=60)
