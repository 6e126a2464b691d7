"""Decisions outside of the job: policies that are followed, how new they are, and answers that are recorded."""
