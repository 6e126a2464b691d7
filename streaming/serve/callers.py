"""Who may ask a server, by which credentials, and what: the file that `serve.callers` names."""

import hmac
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

from policy import all_systems
from streaming.serve.authzen import Rules
from streaming.settings import DEFAULT_TRUST, Settings, SettingsError, read_yaml

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/@:-]{0,127}$")]
"""Of a caller, as logs show it."""

Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Subject = Annotated[str, msgspec.Meta(min_length=1)]
CertificateName = Annotated[str, msgspec.Meta(pattern=r"^(CN|DNS|URI|email):.+$")]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A caller as the file has it. `systems`: that it may ask about; `trust`: what it may claim; `search`: it may.

    Its credentials, any of which will do: `tokens`: SHA-256 of bearer tokens, in hexadecimal digits; `subjects`: what
    JWTs call it; `certificates`: names in its client certificate, the subject's `CN:` or `DNS:`, `URI:` or `email:` of
    its subject alternative names.
    """

    systems: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    trust: frozenset[str] = frozenset()
    search: bool = False
    tokens: tuple[Hash, ...] = ()
    subjects: tuple[Subject, ...] = ()
    certificates: tuple[CertificateName, ...] = ()


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    callers: Annotated[dict[Name, Entry], msgspec.Meta(min_length=1)]


class Caller(msgspec.Struct, frozen=True):
    """The caller. `name`: "" without authentication. `rules`: with its systems and trust. `may_search`: at all."""

    name: str
    rules: Rules
    may_search: bool = True


class Callers:
    """Callers by their credentials. Immutable."""

    def __init__(self, callers: Mapping[str, tuple[Entry, Caller]]) -> None:
        self._hashes = [(bytes.fromhex(text), caller) for entry, caller in callers.values() for text in entry.tokens]
        self._subjects = {name: caller for entry, caller in callers.values() for name in entry.subjects}
        self._certificates = {name: caller for entry, caller in callers.values() for name in entry.certificates}

    def by_token(self, token: bytes) -> Caller | None:
        """The caller with this token. Compares with all, in constant time."""
        digest, matching = sha256(token).digest(), None
        for token_hash, caller in self._hashes:
            if hmac.compare_digest(token_hash, digest):
                matching = caller
        return matching

    def by_subject(self, subject: str) -> Caller | None:
        """The caller that a verified JWT names."""
        return self._subjects.get(subject)

    def by_certificate(self, names: Iterable[str]) -> Caller | None:
        """The caller that a verified certificate names; None also where its names are those of several."""
        callers = {id(caller): caller for name in names if (caller := self._certificates.get(name)) is not None}
        return next(iter(callers.values())) if len(callers) == 1 else None


def load_callers(settings: Settings) -> Callers:
    """Read the file. Raises SettingsError, which shows no value of the file: it may be a token by mistake."""
    path = Path(settings.serve.callers)
    try:
        file = msgspec.convert(read_yaml(path), File)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; serve.callers must name a file that can be read") from None
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {error}. A caller has systems, trust, search, and {_CREDENTIALS}") from None
    _check(path, file, settings)
    return Callers({name: (entry, _caller(name, entry, settings)) for name, entry in file.callers.items()})


_CREDENTIALS = "tokens (SHA-256, 64 hexadecimal digits), subjects, or certificates (CN:…, DNS:…, URI:… or email:…)"


def _check(path: Path, file: File, settings: Settings) -> None:
    owners: dict[tuple[str, str], str] = {}
    for name, entry in file.callers.items():
        where = f"{path}: callers.{name}"
        if unknown := sorted(set(entry.systems) - set(settings.systems)):
            raise SettingsError(f"{where}.systems: {unknown} are not among the setting systems: {settings.systems}")
        if unknown := sorted(entry.trust - DEFAULT_TRUST):
            raise SettingsError(f"{where}.trust: {unknown} are not among {sorted(DEFAULT_TRUST)}")
        credentials = [(kind, text) for kind in _KINDS for text in getattr(entry, kind)]
        if not credentials:
            raise SettingsError(f"{where}: has no credentials; give it {_CREDENTIALS}")
        _check_use(where, credentials, settings)
        for credential in credentials:
            if owners.setdefault(credential, name) != name:
                raise SettingsError(f"{where}.{credential[0]}: one is also of {owners[credential]}; leave it to one")


_KINDS = ("tokens", "subjects", "certificates")


def _check_use(where: str, credentials: list[tuple[str, str]], settings: Settings) -> None:
    kinds = {kind for kind, _ in credentials}
    if "subjects" in kinds and not settings.serve.jwt.issuer:
        raise SettingsError(f"{where}.subjects: no JWT is accepted; set serve.jwt.issuer, audience and jwks")
    if "certificates" in kinds and not settings.serve.tls.client_ca:
        raise SettingsError(f"{where}.certificates: no client certificate is accepted; set serve.tls.client_ca")


def _caller(name: str, entry: Entry, settings: Settings) -> Caller:
    return Caller(name, rules_of(settings, entry.systems, entry.trust), entry.search)


def rules_of(settings: Settings, systems: tuple[str, ...], trust: frozenset[str]) -> Rules:
    """What holds for a caller that may ask about `systems` and claim `trust`."""
    claims = settings.trusted_in_answers(trust)
    others = frozenset(settings.systems).difference(systems)
    return Rules(
        systems,
        settings.serve.default_system,
        claims,
        settings.limits,
        settings.mode == "enforce",
        frozenset(_topics_of(settings, others) - _topics_of(settings, systems)),
    )


def _topics_of(settings: Settings, systems: Collection[str]) -> set[str]:
    """The topics that hold policies and facts of some systems."""
    policies = {topic for system, topic in settings.topics.policy_topics().items() if system in systems}
    return policies | {settings.topics.facts for system in systems if all_systems()[system].has_facts}
