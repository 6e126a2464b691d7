"""What holds for the records of all kinds that the job writes."""
