"""Benchmarks: the job (`python -m streaming.bench`) and the evaluator alone (`python -m streaming.bench.evaluator`)."""
