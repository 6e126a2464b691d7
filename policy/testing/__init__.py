"""Case files: read, run, reported."""

from policy.testing.casefile import (
    BESIDE_SUBJECT,
    CaseFileError,
    document_key,
    full_request,
    load_cases,
    refuse_ignored,
    refuse_unknown_members,
)
from policy.testing.drafts import (
    NAMED,
    Detail,
    Draft,
    DraftAnswer,
    DraftPolicies,
    DraftRequest,
    Evaluation,
    Problem,
    actions_of,
    evaluate_draft,
    short_form_of,
)
from policy.testing.run import Coverage, Result, cover, describe, junit_xml, run_cases
from policy.testing.unknown import CaseNames, names_in

__all__ = [
    "BESIDE_SUBJECT",
    "NAMED",
    "CaseFileError",
    "CaseNames",
    "Coverage",
    "Detail",
    "Draft",
    "DraftAnswer",
    "DraftPolicies",
    "DraftRequest",
    "Evaluation",
    "Problem",
    "Result",
    "actions_of",
    "cover",
    "describe",
    "document_key",
    "evaluate_draft",
    "full_request",
    "junit_xml",
    "load_cases",
    "names_in",
    "refuse_ignored",
    "refuse_unknown_members",
    "run_cases",
    "short_form_of",
]
