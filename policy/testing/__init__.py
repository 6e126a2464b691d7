"""Case files: read, run, reported."""

from policy.testing.casefile import CaseFileError, document_key, full_request, load_cases
from policy.testing.run import Coverage, Result, cover, describe, junit_xml, run_cases

__all__ = [
    "CaseFileError",
    "Coverage",
    "Result",
    "cover",
    "describe",
    "document_key",
    "full_request",
    "junit_xml",
    "load_cases",
    "run_cases",
]
