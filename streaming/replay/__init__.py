"""Past requests decided again under other policies, by the job's own evaluator on Spark.

`comparison` and `evaluating` run in the workers, which return a small summary of each task; `result` adds these up;
`run` plans the work and starts it. Nothing is written to Kafka, and no group is joined.
"""
