"""What was decided in a time range, as one page for people: read from the topics, summed up, rendered.

`ranges` reads Kafka; `gather` puts the parts together; the parts between are pure functions over iterators of
records, with bounded memory; `page` and `plots` make the HTML. Everything that stands in a record was written by
untrusted clients: it is bounded where it is counted and escaped where it is shown.
"""
