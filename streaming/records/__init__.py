"""The kinds of records: their shapes in JSON and Avro, schemas, sizes."""
