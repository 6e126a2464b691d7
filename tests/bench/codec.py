"""How fast the codec is alone: requests from Avro to JSON, decisions from JSON to Avro, in one thread.

    python -m tests.bench.codec --requests 20000

Prints a line of JSON for each encoding: the best of the rounds, by the thread's own time, since others use the machine
as well.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from policy import compile_documents
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.records.avro import Reader, Writer
from streaming.records.formats import Formats
from streaming.records.schemas import read
from streaming.settings import DEFAULT_TRUST, Encoding, Limits
from tests.bench import workload

ID = 1  # of every schema: there is no registry to give them others
AVRO: tuple[Encoding, ...] = ("avro-single-object", "avro-confluent")
NOW = 1_795_000_000_000


def codec_rates(requests: int = 20_000, rounds: int = 5) -> list[dict[str, Any]]:
    """For each encoding: requests read and decisions written a second, and bytes of each beside those of JSON."""
    queries = [msgspec.json.encode(one) for one in workload.requests(workload.documents(), requests)]
    decided = _decisions(queries)
    return [_rates_of(encoding, queries, decided, rounds) for encoding in AVRO]


def _decisions(queries: Sequence[bytes]) -> list[bytes]:
    snapshot = compile_documents(workload.documents())
    source = Source("authz.requests.v1", 0, "topic-id", DEFAULT_TRUST, 1)
    context = EvaluationContext(snapshot.version, {"authz.policies.lenses6.v1": {"0": 41}}, 7, {}, NOW)
    partition_evaluator = Evaluator(snapshot, Limits()).for_partition(source, context)
    return [
        partition_evaluator.decide(None, value, None, offset, NOW)[2] or b"" for offset, value in enumerate(queries)
    ]


def _rates_of(encoding: Encoding, queries: list[bytes], decided: list[bytes], rounds: int) -> dict[str, Any]:
    write = Writer("request", encoding, ID).encode
    reader = Reader(Formats(registry=True, known={ID: (read("avro/request.avsc"),)}))
    encoded, answer = list(map(write, queries)), Writer("decision", encoding, ID).encode
    return {
        "encoding": encoding,
        "requests_read_a_second": _rate(partial(reader.transcode, "request"), encoded, rounds),
        "decisions_written_a_second": _rate(answer, decided, rounds),
        "request_bytes": [len(encoded[0]), len(queries[0])],
        "decision_bytes": [len(answer(decided[0])), len(decided[0])],
    }


def _rate(work: Callable[[bytes], bytes], values: Sequence[bytes], rounds: int) -> int:
    return round(len(values) / min(_seconds(work, values) for _ in range(rounds)))


def _seconds(work: Callable[[bytes], bytes], values: Sequence[bytes]) -> float:
    begun = time.thread_time()
    for value in values:
        work(value)
    return time.thread_time() - begun


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests, and decisions, a round.")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the best one is reported.")] = 5,
) -> None:
    """Measure the codec alone, and print a line of JSON for each encoding."""
    for found in codec_rates(requests, rounds):
        print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    typer.run(main)
