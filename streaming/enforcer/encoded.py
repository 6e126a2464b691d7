"""Decisions in Avro: made as JSON like all others, and encoded before they leave the worker."""

from typing import Any

from streaming.enforcer.evaluator import PartitionEvaluator, Source
from streaming.records.avro import Unencodable, Writer
from streaming.records.dead_letter import Rejection, dead_letter
from streaming.records.formats import Formats, content_type, with_content_type
from streaming.records.packing import DECISIONS, Outgoing
from streaming.records.size_gate import TooLarge, fits, record_size
from streaming.settings import Limits


class EncodedEvaluator:
    """A sitting whose decisions are Avro."""

    def __init__(self, sitting: PartitionEvaluator, source: Source, limits: Limits, formats: Formats) -> None:
        self._sitting, self._source, self._limits = sitting, source, limits
        self._encode = Writer("decision", formats.output, formats.ids.get("decision", 0)).encode
        self._content_type = content_type(formats.output)

    def decide(
        self, key: bytes | None, value: bytes | None, headers: list[dict[str, Any]] | None, offset: int, at: int
    ) -> Outgoing:
        """The record to write for one request record, as `PartitionEvaluator.decide` has it. Never raises."""
        record = number, key_, made, told = self._sitting.decide(key, value, headers, offset, at)
        if number != DECISIONS or made is None:
            return record
        try:
            encoded = self._encode(made)
            size = record_size(key_, encoded)
            if not fits(size, self._limits.record_out):
                raise TooLarge("the decision", size, self._limits.record_out)
            return number, key_, encoded, told and with_content_type(told, self._content_type)
        except (Unencodable, TooLarge) as refusal:  # a bug, which must not stop the stream
            source, limits = (
                self._source,
                self._limits,
            )  # a name for the rejection would make a cycle: see PartitionEvaluator.decide
            letter = dead_letter(
                Rejection(source.topic, source.partition, offset, refusal), key, value, headers, limits
            )
            return (source.dead_letters, *letter)
