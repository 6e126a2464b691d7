"""The fuzzer finds bugs: each that is planted, within so many inputs; without one, the same inputs find nothing."""

import pytest

from tests.fuzz.campaign import Report, fuzz
from tests.fuzz.planted import PLANTS, Plant
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.long
SEED = "planted"


def _run(plant: Plant, inputs: int) -> Report:
    make = next(make for make in TARGETS if make.name == plant.target)
    return fuzz(make(SEED), SEED, range(inputs // make.records), most=1, minimal=False)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.bug)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        plant.plant(patched)
        found = _run(plant, plant.inputs).findings
    assert found, f"not within {plant.inputs} inputs"
    sort, where = plant.finding
    assert found[0]["sort"].startswith(sort), found
    assert found[0]["where"].startswith(where), found
