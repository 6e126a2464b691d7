"""`lockkeeper verify`: what the topics of a cluster say of the job's promises."""
