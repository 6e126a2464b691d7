"""What counts as growth in a soak."""

import msgspec

from tests.chaos.soak import Sample, growing

FLAT = Sample(0, 0, 0, 150, 700, 300, 200, 2, 1, 0.5, 400, 60)


def _samples(**grown: float) -> list[Sample]:
    """Ninety samples, in which a measure grows by so much with each."""
    return [
        msgspec.structs.replace(FLAT, **{name: getattr(FLAT, name) + by * number for name, by in grown.items()})
        for number in range(90)
    ]


def test_what_stays_or_wavers_does_not_grow() -> None:
    assert list(growing(_samples())) == []
    wavering = [msgspec.structs.replace(FLAT, heap=200 + 10 * (number % 20)) for number in range(90)]
    assert list(growing(wavering)) == []


def test_growth_is_found_and_named() -> None:
    assert [name for name, _, _ in growing(_samples(blocks=0.2, files=3))] == ["blocks", "files"]
    [(_, before, after)] = growing(_samples(driver=5))
    assert after - before == 110


def test_growth_that_ends_is_none() -> None:
    """Java takes its heap, and a checkpoint the batches that it keeps; then no more."""
    filling = [msgspec.structs.replace(FLAT, checkpoint=min(number, 25)) for number in range(90)]
    assert list(growing(filling)) == []
