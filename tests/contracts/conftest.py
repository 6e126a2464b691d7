"""Fixtures of the contracts' tests."""

from collections.abc import Iterator

import pytest

from tests.contracts.apicurio import Apicurio


@pytest.fixture(scope="module")
def registry() -> Iterator[Apicurio]:
    """A schema registry, the same for all tests: they keep apart by their subjects."""
    with Apicurio() as running:
        yield running
