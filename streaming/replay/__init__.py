"""Past requests decided again under other policies, by the job's own evaluator on Spark.

`evaluating` runs in the workers and returns a small summary of each task; `result` puts them together; `run` plans the
work and starts it. Nothing is written to Kafka, and no group is joined.
"""
