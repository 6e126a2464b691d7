"""Questions about policies: findings, differences, escalations, who can do what."""

from policy.analysis.affected import Affected, FactDocuments, affected_by, affects_everyone
from policy.analysis.concerned import Concerned, effects
from policy.analysis.decision_tree import Node, draw_trees, error_tree
from policy.analysis.diff import Changed, Difference, compare, replay
from policy.analysis.edits import Edit, refused, said
from policy.analysis.escalation import Analysis, Escalation, analyse, open_to_everyone
from policy.analysis.impact import (
    EffectivePermission,
    KnownNames,
    Permitted,
    Undetermined,
    Who,
    known_names,
    what_is_permitted,
    what_subject_can,
    who_can,
)
from policy.analysis.lint import Finding, lint
from policy.analysis.named_in_documents import UnknownName
from policy.analysis.nearest_grants import Nearest, nearest_grants
from policy.analysis.questions import Answer, Question, Questions, Turned, question_of
from policy.analysis.resource_access import AccessPath, ResourceAccess, ResourceQuestion
from policy.analysis.review import Access, MayWiden, Review, read_may_widen, review
from policy.analysis.unknown_names import unknown_names, unknown_subject, unknown_terms
from policy.analysis.usage import ordered_statements, statements, uses
from policy.analysis.widening import Widening, Widenings, widening_text
from policy.analysis.wording import document_contents, grant_text, literal_name, window_text
from policy.systems.kit.engine import Statement

__all__ = [
    "Access",
    "AccessPath",
    "Affected",
    "Analysis",
    "Answer",
    "Changed",
    "Concerned",
    "Difference",
    "Edit",
    "EffectivePermission",
    "Escalation",
    "FactDocuments",
    "Finding",
    "KnownNames",
    "MayWiden",
    "Nearest",
    "Node",
    "Permitted",
    "Question",
    "Questions",
    "ResourceAccess",
    "ResourceQuestion",
    "Review",
    "Statement",
    "Turned",
    "Undetermined",
    "UnknownName",
    "Who",
    "Widening",
    "Widenings",
    "affected_by",
    "affects_everyone",
    "analyse",
    "compare",
    "document_contents",
    "draw_trees",
    "effects",
    "error_tree",
    "grant_text",
    "known_names",
    "lint",
    "literal_name",
    "nearest_grants",
    "open_to_everyone",
    "ordered_statements",
    "question_of",
    "read_may_widen",
    "refused",
    "replay",
    "review",
    "said",
    "statements",
    "unknown_names",
    "unknown_subject",
    "unknown_terms",
    "uses",
    "what_is_permitted",
    "what_subject_can",
    "who_can",
    "widening_text",
    "window_text",
]
