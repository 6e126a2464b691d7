"""A flood on one topic or partition takes no more than its share of a batch while others have records waiting."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.enforcer.ranges import ReadLimits
from streaming.enforcer.shares import fair_shares
from streaming.kafka.clients import Partition
from streaming.settings import SettingsError, check_settings
from tests.brokers import TestBroker
from tests.stream.running import running
from tests.stream.world import World, group, request, role

FLOOD, SMALL = ("flood", 0), ("small", 0)
TOPICS = st.sampled_from(["a", "b", "c", "d"])
WAITING = st.dictionaries(st.tuples(TOPICS, st.integers(0, 5)), st.integers(0, 3000), min_size=1)
WEIGHTS = st.dictionaries(TOPICS, st.sampled_from([0.1, 0.5, 1.0, 3.0, 100.0]))
MOST = st.integers(1, 5000)


def _by_topic(counts: dict[Partition, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (topic, _), count in counts.items():
        found[topic] = found.get(topic, 0) + count
    return found


@given(WAITING, MOST, WEIGHTS)
def test_nothing_is_read_that_is_not_there_nothing_waits_forever_and_nothing_is_left_unused(
    waiting: dict[Partition, int], most: int, weights: dict[str, float]
) -> None:
    shares = fair_shares(waiting, most, weights)
    assert shares.keys() == waiting.keys()
    assert all(min(count, 1) <= shares[partition] <= count for partition, count in waiting.items())
    assert sum(shares.values()) >= min(most, sum(waiting.values())), "what one does not need goes to the others"
    assert sum(shares.values()) <= most + len(waiting), "one of each at least"


@given(WAITING, MOST, WEIGHTS)
def test_whoever_wants_more_has_at_least_its_part_by_weight(
    waiting: dict[Partition, int], most: int, weights: dict[str, float]
) -> None:
    shares = fair_shares(waiting, most, weights)
    wanted, read = _by_topic(waiting), _by_topic(shares)
    whole = sum(weights.get(topic, 1.0) for topic, count in wanted.items() if count)
    for topic, count in wanted.items():
        if read[topic] < count:
            assert read[topic] >= int(most * weights.get(topic, 1.0) / whole)
        partitions = [partition for partition in waiting if partition[0] == topic and waiting[partition]]
        for partition in partitions:
            if shares[partition] < waiting[partition]:
                assert shares[partition] >= read[topic] // len(partitions) or shares[partition] == 1


@given(WAITING, MOST, WEIGHTS, TOPICS, st.integers(1, 10**6))
def test_a_flood_takes_nothing_from_a_topic_that_needs_less_than_its_share(
    waiting: dict[Partition, int], most: int, weights: dict[str, float], flooded: str, flood: int
) -> None:
    before = fair_shares(waiting, most, weights)
    wanted = _by_topic(waiting)
    whole = sum(weights.get(topic, 1.0) for topic in {*wanted, flooded})
    after = fair_shares({**waiting, (flooded, 99): flood}, most, weights)
    for topic, count in wanted.items():
        if topic != flooded and count <= int(most * weights.get(topic, 1.0) / whole):
            for partition in waiting:
                if partition[0] == topic:
                    assert after[partition] == before[partition] == waiting[partition]


def test_saturated_topics_share_by_weight() -> None:
    waiting = {("a", 0): 10**6, ("a", 1): 10**6, ("b", 0): 10**6}
    assert fair_shares(waiting, 1000, {}) == {("a", 0): 250, ("a", 1): 250, ("b", 0): 500}
    assert fair_shares(waiting, 1000, {"a": 3}) == {("a", 0): 375, ("a", 1): 375, ("b", 0): 250}


def test_a_batch_in_which_spark_leaves_out_the_small_is_read_by_shares_and_an_even_one_as_it_is() -> None:
    limits, committed = ReadLimits(1000), {FLOOD: 0, SMALL: 0}
    of_spark, newest = {FLOOD: 999, SMALL: 1}, {FLOOD: 10**6, SMALL: 40}
    range_ = limits.first(of_spark, committed, replayed=False, newest=newest)
    assert (range_.whole, range_.undecided) == (False, {FLOOD: 960, SMALL: 40})
    rest = limits.next(of_spark, {FLOOD: 10**6, SMALL: 45}, {FLOOD: 960, SMALL: 40})
    assert rest.undecided == {FLOOD: 995, SMALL: 5}, "the end of Spark's batch is no bound: it is decided and left out"
    even = limits.first({FLOOD: 500, SMALL: 500}, committed, replayed=False, newest={FLOOD: 10**6, SMALL: 10**6})
    assert even.whole
    assert not limits.is_full({FLOOD: 100, SMALL: 5}, committed)
    assert limits.is_full(of_spark, committed)


def test_weights_are_of_input_topics() -> None:
    with pytest.raises(SettingsError, match=r"^settings: weights.others: not one of"):
        check_settings({"weights": {"others": 2}})
    assert check_settings({"weights": {"authz.audit.v1": 0.5}}).weights == {"authz.audit.v1": 0.5}


MANY, FEW, AT_ONCE = 6000, 30, 500


@pytest.mark.stream
@pytest.mark.long
def test_a_small_tenant_is_answered_while_another_floods(
    broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """By the order of the decisions, which have one partition: no clock is looked at."""
    world = World(broker, fresh_name("shares"), str(tmp_path / "checkpoint"), max_records=AT_ONCE)
    world.publish(group("readers", "user:dana"))
    world.publish(role("readers", "kafka:topic:prod/main/orders"))
    flooded, small = world.names.requests
    for topic, count in ((flooded, MANY), (small, FEW)):
        for number in range(count):
            value = json.dumps(request(f"{topic}-{number}", "dana", "orders")).encode()
            world.producer.produce(topic, value, b"k", partition=0)
    assert world.producer.flush(60) == 0
    with running(world.settings):
        answers = world.reader(world.names.decisions)
        answers.until(lambda found: len(found) >= MANY + FEW, "all are decided", 240)
    order = sorted(answers.messages, key=lambda message: (message.partition() or 0, message.offset() or 0))
    ids = [json.loads(message.value())["request_id"] for message in order]
    assert len(set(ids)) == len(ids) == MANY + FEW
    last = max(place for place, id_ in enumerate(ids) if id_.startswith(small))
    assert last < 3 * AT_ONCE, "Spark alone reads two of the small topic's in each batch"
