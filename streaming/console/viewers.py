"""Who sees what: the file that `console.access` names."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import structlog

from streaming.console.viewer import Viewer
from streaming.serve.files import Changes
from streaming.settings import Settings, SettingsError, read_yaml

log = structlog.get_logger()

ALL = "*"
Text = Annotated[str, msgspec.Meta(min_length=1)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Viewers as the file has them. `systems`: whose policies, decisions and alerts they see; `*`: all of them.

    `subjects`: what the issuer or the proxy calls them; `groups`: that it says they are in. One of either will do.
    """

    systems: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    subjects: tuple[Text, ...] = ()
    groups: tuple[Text, ...] = ()


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    viewers: Annotated[dict[str, Entry], msgspec.Meta(min_length=1)]


class Viewers:
    """The entries of the file. It is read again when it changes; what cannot be used leaves it as it was.

    Raises SettingsError where the file cannot be used at first.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._entries = _load(settings)
        self._changes = Changes([settings.console.access])

    def find(self, subject: str, groups: Iterable[str]) -> Viewer | None:
        """The viewer with what all of its entries let it see; None: there is no entry for it."""
        if self._changes.seen():
            self._reread()
        named = frozenset(groups)
        own = [entry for entry in self._entries if subject in entry.subjects or not named.isdisjoint(entry.groups)]
        systems = frozenset(system for entry in own for system in entry.systems)
        return Viewer(subject, None if ALL in systems else systems) if own and subject else None

    def _reread(self) -> None:
        try:
            self._entries = _load(self._settings)
            log.info("who sees the console was read again")
        except SettingsError as error:
            log.error("who sees the console stays as it was: the file cannot be used", error=str(error))


def _load(settings: Settings) -> tuple[Entry, ...]:
    path = Path(settings.console.access)
    try:
        file = msgspec.convert(read_yaml(path), File)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; console.access must name a file that can be read") from None
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {error}. A viewer has systems, and subjects or groups") from None
    for name, entry in file.viewers.items():
        if unknown := sorted(set(entry.systems) - {*settings.systems, ALL}):
            raise SettingsError(f"{path}: viewers.{name}.systems: {unknown} are not among {settings.systems}, nor `*`")
        if not entry.subjects and not entry.groups:
            raise SettingsError(f"{path}: viewers.{name}: has neither subjects nor groups, so it is nobody")
    return tuple(file.viewers.values())
