"""The partition that the key of a record leads to: that of Kafka's clients in Java, with which the job writes."""

import functools

SEED, MULTIPLIER = 0x9747B28C, 0x5BD1E995
BITS, SIGN = 0xFFFFFFFF, 0x80000000
KEYS_HELD = 100_000


@functools.lru_cache(KEYS_HELD)
def murmur2(key: bytes) -> int:
    """The hash of a key, without a sign: 32 bits. MurmurHash2 by Austin Appleby, with Kafka's seed."""
    hashed = SEED ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(key[at : at + 4], "little") * MULTIPLIER & BITS
        hashed = (hashed * MULTIPLIER & BITS) ^ ((part ^ part >> 24) * MULTIPLIER & BITS)
    if key[whole:]:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * MULTIPLIER & BITS
    hashed = (hashed ^ hashed >> 13) * MULTIPLIER & BITS
    return hashed ^ hashed >> 15


def partition_of(key: bytes, count: int) -> int:
    """Of so many partitions."""
    return (murmur2(key) & ~SIGN) % count
