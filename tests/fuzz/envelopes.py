"""`python -m tests.fuzz.envelopes`: hostile requests for Java's table of known answers.

What Java answers must be, byte for byte, what a worker that keeps nothing decides. What it leaves to Python is fine,
whatever it is. Requests are those that the table knows, changed a little: what is hardest to tell from them.
"""

import argparse
import secrets
import sys
import time
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from policy import compile_documents
from streaming.enforcer.evaluator import Evaluator, PartitionEvaluator
from streaming.enforcer.source import Records
from streaming.runtime.spark import start_session
from streaming.settings import Limits
from tests.bench import traffic
from tests.stream.arrow import AT, Headers, records_at
from tests.stream.known import Made, Table, context_of, same, source_of, teach
from tests.stream.world import SHORT_LIVED

BATCH = 20_000
STATEMENTS, REQUESTS = 200, 400
PIECES = [
    *(b"%c" % character for character in b'"\\{}[]:,/ \t\n\r\0\1\x1f\x7f\x80\xff0aZ-.eE+*_'),
    *(b'""', b"\\u0061", b'\\"', b"null", b"true", b'"id":"x",', b',"id":"r"', b'"time":1,', b',"deadline":9e9'),
    *(b'"deadline":%d,' % moment for moment in (AT - 1, AT, AT + 1, 10**10)),
    *(b'"time":"2026-11-21T10:00:00%b",' % end for end in (b"Z", b".5Z", b".0019Z", b"+01:00", b"z", b"")),
    *(
        b'"deadline":"%b",' % text
        for text in (b"2999-02-29T10:00:00Z", b"2996-02-29T10:00:00Z", b"2016-12-31T23:59:60Z")
    ),
    *(b"2026-11-2", b"T", b"-02-29", b"Z", b"60", b"+00:00", b".123456789", b".1234567891"),
    *(b'"context":{"ip":"a","n":1},', b'"host":"a",', b'"ip":"a",', b'"n":1', b',"a":true', b"32", b"null}"),
    *(b'"context":{},', b'"evaluations":[],', b'"properties":{},', "é".encode(), "\ufff9".encode(), b"\xed\xa0\x80"),
]
TRACE = "traceparent"
KEYS = (None, b"", b"key", b"k" * 300)
NAMES = (TRACE, "tracestate", "", "traceparen", "traceparent2", "\N{LATIN SMALL LETTER E WITH ACUTE}")
VALUES = (None, b"", b"00-1", b"\0\0\0\x0btraceparent", b"x" * 1024, b"x" * 1025, b"\xff\xff\xff\xff")
MEMBERS = (b'"id":', b'"system":', b'"subject":', b'"action":', b'"resource":', b'"type":', b'"context":')


class Disagreement(Exception):
    """Java has answered otherwise than Python."""


class Fuzzed(NamedTuple):
    """How many requests there were, and how many of these Java has answered."""

    envelopes: int
    answered: int


class Envelopes:
    """A table that knows some requests of all systems, and what draws ones like them. `seed`: of all that is drawn."""

    def __init__(self, spark: Any, seed: str) -> None:
        self._dice = Random(seed)
        documents, requests = traffic.policies_and_requests(STATEMENTS, REQUESTS, self._dice.randrange(1 << 30))
        contexts = [{}, {"context": {"ip": "10.0.0.7", "n": 1}}, {"context": {"host": "10.0.0.7", "is_retry": None}}]
        self._known = [msgspec.json.encode({**self._dice.choice(contexts), **request}) for request in requests]
        self._snapshot = compile_documents(documents)
        self._table = Table(spark)
        self._table.follow(self._snapshot)
        self._task, self._source = self._table.task(), source_of()
        evaluator, batch = Evaluator(self._snapshot, Limits()), records_at((None, one, None, AT) for one in self._known)
        for _ in range(3):
            made, _ = self._table.decide(batch, self._task)
            self._table.learn(teach(evaluator, batch, made, self._source), self._task)
        self._careful = Evaluator(self._snapshot, Limits())

    def draw(self) -> bytes:
        """A request that is known, changed in some places; seldom not at all."""
        dice, text = self._dice, self._dice.choice(self._known)
        for _ in range(dice.choice((0, 1, 1, 1, 2, 2, 3, 6))):
            text = self._changed(text)
        return text

    def _changed(self, text: bytes) -> bytes:
        dice, place = self._dice, self._dice.randrange(len(text) + 1)
        draw = dice.random()
        if draw < 0.3:
            return text[:place] + dice.choice(PIECES) + text[place:]
        if draw < 0.45:
            return text[:place] + dice.choice(PIECES) + text[place + dice.randrange(1, 4) :]
        if draw < 0.55:
            return text[:place] + text[place + dice.randrange(1, 20) :]
        other = dice.choice(self._known)
        if draw < 0.7:
            return self._member_of(text, other)
        if draw < 0.8:
            end = place + dice.randrange(40)
            return text[:end] + text[place:]  # a part of it twice
        if draw < 0.9:
            return self._renamed(text)
        return text[:place] + other[place:]

    def _member_of(self, text: bytes, other: bytes) -> bytes:
        """With a member of another one, as far as its text is found: in place of its own, or beside it."""
        name = self._dice.choice(MEMBERS)
        start, end = other.find(name), other.find(b',"', other.find(name) + len(name))
        place = text.find(name)
        if min(start, end, place) < 0:
            return text
        behind = text.find(b',"', place + len(name)) if self._dice.random() < 0.7 else place - 1
        return text[:place] + other[start:end] + (text[behind:] if behind >= 0 else b"")

    def _renamed(self, text: bytes) -> bytes:
        """With another end of the resource's id, everywhere or at one place."""
        start = text.find(b'"id":"', text.find(b'"resource":'))
        id_ = text[start + 6 : text.find(b'"', start + 6)]
        new = id_ + self._dice.choice((b"x", b"-1", b"/a", b"//", b" ", b"*", b"\\u0041", "é".encode()))
        return text.replace(b'"%b"' % id_, b'"%b"' % new, self._dice.choice((1, -1)))

    def _headers(self) -> Headers:
        """None, mostly a trace that is alone, or what may be taken for one."""
        draw = self._dice.random()
        if draw < 0.3:
            return None
        if draw < 0.7:
            return [(TRACE, b"00-%032x-%016x-01" % (self._dice.getrandbits(128), self._dice.getrandbits(64)))]
        return [(self._dice.choice(NAMES), self._dice.choice(VALUES)) for _ in range(self._dice.choice((1, 1, 2, 3)))]

    def run(self, count: int) -> Fuzzed:
        """Give so many to Java. Raises Disagreement with the request."""
        answered = left = 0
        for left in range(count, 0, -BATCH):
            sent = [(self._dice.choice(KEYS), self.draw(), self._headers(), AT) for _ in range(min(left, BATCH))]
            batch = records_at(sent)
            made, _ = self._table.decide(batch, self._task)
            answered += self._check(batch, made)
        return Fuzzed(count, answered)

    def _check(self, batch: Any, made: list[Made]) -> int:
        answered = 0
        with mock.patch.object(PartitionEvaluator, "_answer", return_value=None):
            careful = self._careful.for_partition(self._source, context_of())
            for row, one in zip(Records(batch).rows(), made, strict=True):
                if one.missing is None:
                    answered += 1
                    expected = careful.decide(*row)
                    if not same(one, expected):
                        raise Disagreement(f"{row[1]!r}: Java {one.value!r}, Python {expected!r}")
        return answered


def main() -> int:
    """The exit code: 1 when Java has answered otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.envelopes", description=__doc__)
    parser.add_argument("--envelopes", type=int, default=1_000_000)
    parser.add_argument("--seed", default=secrets.token_hex(4), help="the same seed draws the same requests")
    options = parser.parse_args()
    spark, began = start_session("envelopes", SHORT_LIVED, "local[1]"), time.monotonic()
    try:
        fuzzed = Envelopes(spark, options.seed).run(options.envelopes)
    except Disagreement as wrong:
        print(f"seed {options.seed}: {wrong}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    row = {"seed": options.seed, **fuzzed._asdict(), "seconds": round(time.monotonic() - began, 1)}
    print(msgspec.json.encode(row).decode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
