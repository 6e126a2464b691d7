"""Case files: read, run, reported."""
