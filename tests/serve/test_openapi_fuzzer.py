"""A fuzzer finds no answer of the server that the OpenAPI document does not have.

`make test`, which leaves out what is long, does not collect this file: its cases are made as it is collected.
"""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.examples import examples
from tests.serve.test_openapi import DOCUMENT, TOKEN, Running, running

__all__ = ["running"]

API = schemathesis.openapi.from_dict(DOCUMENT)
EXCLUDED = [
    schemathesis.checks.ignored_auth,  # it asks again with the same headers; who may ask is tested in test_access
    schemathesis.checks.positive_data_acceptance,  # tokens of pages are opaque, and a batch has one system
    schemathesis.checks.negative_data_rejection,  # fields that a request does not need are not looked at
]
EXAMPLES = examples(40)


@pytest.mark.stream
@pytest.mark.long
@pytest.mark.timeout(600)
@API.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_fuzzer_finds_no_answer_that_the_document_does_not_have(case: schemathesis.Case, running: Running) -> None:
    """No status of 500, and statuses, headers and bodies as the document has them."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    base = f"http://127.0.0.1:{running.server.port}"
    case.call_and_validate(base_url=base, headers=headers, excluded_checks=EXCLUDED)
