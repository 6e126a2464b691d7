"""The contracts for machines: schemas of every record as data files, and the Avro encodings of them.

`avro/` and `json/` hold the schemas in force, `released/` those of every release, `asyncapi.yaml` the topics.
"""
