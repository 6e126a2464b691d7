"""Records as JSON for tools and clients, whatever their encoding; schemas are asked for as they are met."""

from streaming.records.avro import Reader, Undecodable, is_avro
from streaming.records.formats import Formats
from streaming.records.registry import Registry, RegistryRefused
from streaming.records.schemas import Kind
from streaming.settings import SchemaRegistry


class Readings:
    """Holds the schemas that it has met."""

    def __init__(self, settings: SchemaRegistry) -> None:
        self._settings = settings
        self._registry: Registry | None = None
        self._known: dict[int, tuple[str, ...]] = {}

    def json(self, kind: Kind, value: bytes) -> bytes:
        """The record as JSON; what is not Avro is returned as it is.

        Raises Undecodable, and RegistryDown when a schema is needed and the registry does not answer.
        """
        if not is_avro(value):
            return value
        reader = Reader(Formats(registry=bool(self._settings.url), known=self._known))
        try:
            return reader.transcode(kind, value)
        except Undecodable:
            if not reader.needed:
                raise
        self._learn(reader.needed.pop())
        return self.json(kind, value)

    def _learn(self, id_: int) -> None:
        self._registry = self._registry or Registry(self._settings)
        try:
            self._known[id_] = self._registry.schema(id_)
        except RegistryRefused as error:
            raise Undecodable(f"the Avro schema with id {id_} cannot be read by: {error}") from error
