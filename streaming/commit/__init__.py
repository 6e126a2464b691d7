"""Exactly once: what a batch writes, in one transaction with its offsets."""
