"""Where the keys of records lead, as Kafka's clients in Java have it."""

import pytest

from streaming.verify.partitions import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_kafka_does(key: bytes, hashed: int) -> None:
    """The cases of Kafka's own UtilsTest."""
    assert murmur2(key) == hashed % (1 << 32)


def test_the_partition_is_of_the_hash_without_its_sign() -> None:
    assert [partition_of(b"foobar", count) for count in (1, 2, 3, 7)] == [
        (-790332482 & 0x7FFFFFFF) % count for count in (1, 2, 3, 7)
    ]
