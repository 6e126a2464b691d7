"""Decisions: a request evaluated over a snapshot, and why."""
