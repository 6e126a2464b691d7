"""Valid samples to begin with: the documents and requests of the case files, of `deploy`, and of the bench."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from policy.core.request import CLAIMS
from policy.store.documents import DocumentStore
from policy.store.repository import read_documents
from policy.store.snapshot import Snapshot
from policy.testing.casefile import CaseFileError, full_request, load_cases
from streaming.settings import DEFAULT_TRUST
from tests.bench import workload
from tests.fuzz.mutation import mutate_data, texts_in

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/cases").glob("*.yaml"))
PER_WORLD = 100  # inputs in a row that ask the same documents, so that caches fill
LONGEST_WORD = 200
MUTATED = 0.5  # of the worlds have documents that were changed

Data = dict[str, Any]


class Sample(msgspec.Struct, frozen=True):
    """Documents of the policy topics and of the facts topic, and requests about them."""

    policies: tuple[Data, ...]
    facts: tuple[Data, ...]
    requests: tuple[Data, ...]
    trusts: tuple[frozenset[str], ...]


class World(msgspec.Struct, frozen=True):
    """A sample in force."""

    sample: Sample
    snapshot: Snapshot
    words: list[str]


@functools.cache
def samples() -> tuple[Sample, ...]:
    """Every sample."""
    return (*(sample for path in CASES for sample in _of_cases(path)), _deployed(), _benched())


def _of_cases(path: Path) -> Iterator[Sample]:
    file = load_cases(path)
    for case in file.cases:
        policies, facts = {}, {}
        requests, trusts = list[Data](), [CLAIMS]
        for stage in case.stages:
            for found, documents in ((policies, stage.apply), (facts, stage.facts)):
                for document in documents:
                    whole = {"system": file.system, **document}
                    found[json.dumps([whole.get("kind"), whole.get("name")])] = whole
            trusts.append(stage.claims)
            requests += (request for one in stage.expect if (request := _request(one.ask, file.system, stage.moment)))
        if requests:
            yield Sample(tuple(policies.values()), tuple(facts.values()), tuple(requests), tuple(trusts))


def _request(ask: Data, system: str, at: int | None) -> Data | None:
    try:
        request = full_request(ask, system, at)
        json.dumps(request)
    except (CaseFileError, TypeError):
        return None
    return request


def _deployed() -> Sample:
    documents = tuple(one.value for one in read_documents(ROOT / "deploy/policies"))
    requests = tuple(map(json.loads, (ROOT / "deploy/requests.jsonl").read_text().splitlines()))
    return Sample(documents, (), requests, (DEFAULT_TRUST,))


def _benched() -> Sample:
    documents = workload.documents(60)
    return Sample(tuple(documents), (), tuple(workload.requests(documents, 200)), (DEFAULT_TRUST,))


@functools.cache
def all_documents() -> tuple[Data, ...]:
    """Every document of every sample, facts too."""
    return tuple(document for sample in samples() for document in (*sample.policies, *sample.facts))


@functools.cache
def all_requests() -> tuple[Data, ...]:
    """Every request of every sample."""
    return tuple(request for sample in samples() for request in sample.requests)


@functools.cache
def words(system: str) -> list[str]:
    """The texts in the documents and requests of a system."""
    found = (one for one in (*all_documents(), *all_requests()) if one.get("system") == system)
    return sorted({text for one in found for text in texts_in(one) if len(text) <= LONGEST_WORD})


def system_of(sample: Sample) -> str:
    """The system that a sample is about."""
    system = (sample.policies + sample.facts + sample.requests)[0].get("system")
    return system if isinstance(system, str) else ""


def draw_sample(dice: Random) -> Sample:
    """A sample, half of the time with some of its documents changed."""
    sample = dice.choice(samples())
    if dice.random() >= MUTATED or not sample.policies:
        return sample
    return msgspec.structs.replace(sample, policies=_some_changed(dice, sample.policies, words(system_of(sample))))


def _some_changed(dice: Random, documents: tuple[Data, ...], vocabulary: list[str]) -> tuple[Data, ...]:
    changed = list(documents)
    for _ in range(dice.randint(1, 3)):
        number = dice.randrange(len(changed))
        spec = changed[number].get("spec")
        if isinstance(spec, dict):
            changed[number] = {**changed[number], "spec": mutate_data(dice, spec, vocabulary, times=1)}
    return tuple(changed)


def build(sample: Sample) -> World:
    """The sample in force."""
    policies, facts = DocumentStore(), DocumentStore(facts_only=True)
    for store, documents in ((policies, sample.policies), (facts, sample.facts)):
        for document in documents:
            store.put(document)
    texts = texts_in([*sample.policies, *sample.facts, *sample.requests])
    return World(sample, Snapshot(policies, facts), sorted({text for text in texts if len(text) <= LONGEST_WORD}))


def plain_sample(sample: Sample) -> Data:
    """The documents of a sample as plain data, to be kept with an input; see `world_from`."""
    return {"policies": list(sample.policies), "facts": list(sample.facts)}


def world_from(data: Data) -> World:
    """The reverse."""
    return build(Sample(tuple(data["policies"]), tuple(data["facts"]), (), ()))
