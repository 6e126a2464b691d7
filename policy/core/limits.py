"""Limits on the work of one decision."""

MAX_RELATED = 10_000  # objects of one request …
BESIDE = 2  # … beside the resource itself, and what it belongs to
MAX_PARTS = 20 * MAX_RELATED  # of a requirement: what is needed of each object, and the ways to have it
