"""What must hold between settings. Each error names the setting, its value and what would fix it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from policy import CLAIMS, all_systems, nearest
from streaming.settings.console import console_problem
from streaming.settings.errors import SettingsError
from streaming.settings.model import Settings, setting_types
from streaming.settings.serve import check_serve
from streaming.settings.urls import is_address, is_loopback
from streaming.topics import topic_with_two_uses

UNKNOWN_FIELD = re.compile(r"unknown field `([^`]+)`(?: - at `\$\.([^`]+)`)?")
"""How msgspec reports one: its name, and the mapping that it is in; none: it is at the top."""

MAY_HOLD_SECRETS = frozenset({"kafka", "source", "spark", "schema_registry", "tracing"})


def check_settings(data: Mapping[str, Any], source: str = "settings") -> Settings:
    """The settings from plain data; `source` is named in errors. Raises SettingsError."""
    try:
        _check_texts(data)
        settings = msgspec.convert(data, Settings)
        _check_systems(data, settings)
        _check_topics(settings)
        _check_registry(settings)
        check_serve(settings.serve, settings.systems)
        if problem := console_problem(settings.console, is_loopback(settings.console.address)):
            raise SettingsError(problem)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}: {error}{_value_at(data, str(error))}{_setting_meant(str(error))}") from None
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from None
    return settings


def _check_texts(data: Mapping[str, Any]) -> None:
    """What writes a text, such as librdkafka's binding, would be the first to refuse it. Values may be secrets."""
    for name, value in data.items():
        try:
            msgspec.json.encode({name: value})
        except UnicodeEncodeError:
            raise SettingsError(f"{name!r}: a text that is no UTF-8, or half of a surrogate pair; correct it") from None


def _setting_meant(message: str) -> str:
    """For an error about a field that is no setting: those with a name like it, else all of its mapping."""
    if not (unknown := UNKNOWN_FIELD.search(message)):
        return ""
    field, mapping = unknown[1], f"{unknown[2]}." if unknown[2] else ""
    names = [name for path, _ in setting_types(Settings) if (name := ".".join(path)).startswith(mapping)]
    hint = nearest(f"{mapping}{field}", names, mapping)
    return hint or (f". Settings there are: {', '.join(names)}" if names else "")


def _value_at(data: Any, message: str) -> str:
    """The value at which an error message points: "… - at `$.limits.record_in`"; nothing if it may be a secret."""
    path = message.rpartition("`$.")[2].rstrip("`").split(".") if "`$." in message else []
    if not path or path[0] in MAY_HOLD_SECRETS or path[-1] == "client_secret":
        return ""
    for name in path:
        if not isinstance(data, Mapping) or name not in data:
            return ""
        data = data[name]
    return "" if isinstance(data, Mapping | list) else f" (it is {data!r})"


def _check_systems(data: Mapping[str, Any], settings: Settings) -> None:
    """A system that has topics must be installed, and all policies of one topic are of one system."""
    installed, topics = all_systems(), data.get("topics", {})
    if "systems" in topics and tuple(topics["systems"]) != settings.systems:
        raise SettingsError("topics.systems: is no setting; `systems` says which systems have topics")
    if not settings.systems:
        raise SettingsError(f"systems: must name at least one of {', '.join(installed)}")
    for system in settings.systems:
        if system not in installed:
            raise SettingsError(f"systems: {system!r} is not installed{_nearest_installed(system)}")
        if settings.systems.count(system) > 1:
            raise SettingsError(f"systems: {system!r} is there twice; leave one out")
    for setting, systems in _settings_by_system(settings).items():
        for system in sorted(systems):
            if system not in installed:
                raise SettingsError(f"{setting}: no system {system!r} is installed{_nearest_installed(system)}")


def _settings_by_system(settings: Settings) -> dict[str, Iterable[str]]:
    """Where systems are named. With a misspelt one the default would count instead of what is set for it."""
    return {
        "topics.policies": settings.topics.policies,
        "monitor.systems": settings.monitor.systems,
        "monitor.exempt": frozenset[str]().union(*(exemption.systems for exemption in settings.monitor.exempt)),
        "serve.record": settings.serve.record if isinstance(settings.serve.record, dict) else (),
    }


def _nearest_installed(system: str) -> str:
    """Which systems there are, the one that may be meant first; to end a message with."""
    return f"{nearest(system, all_systems())}; there are {', '.join(all_systems())}"


def _check_topics(settings: Settings) -> None:
    """Who may write to a topic follows from its use: who publishes requests or facts must not publish policies."""
    inputs = settings.topics.inputs
    if shared := topic_with_two_uses(settings.topics):
        topic, *uses = shared
        raise SettingsError(f"topic {topic!r} is both {' and '.join(uses)}: give each a topic of its own")
    for setting, topics in (("trust", settings.trust), ("weights", settings.weights)):
        for topic in topics:
            if topic not in inputs:
                raise SettingsError(
                    f"{setting}.{topic}: not one of topics.requests, topics.audit or topics.answered: {inputs}"
                )
    for topic, claims in settings.trust.items():
        if unknown := claims - CLAIMS:
            raise SettingsError(f"trust.{topic}: {sorted(unknown)} are not among {sorted(CLAIMS)}")


def _check_registry(settings: Settings) -> None:
    """The URL is shown in errors and logs: it must not hold a password."""
    registry = settings.schema_registry
    if "@" in registry.url:
        raise SettingsError("schema_registry.url: leave user and password out of it; they are settings too")
    if registry.url and not all(map(is_address, registry.url.split(","))):
        raise SettingsError("schema_registry.url: not an address such as http://localhost:8081")
    if registry.password and not registry.user:
        raise SettingsError("schema_registry.password: needs schema_registry.user")
    if settings.encoding == "avro-confluent" and not registry.url:
        raise SettingsError("encoding: avro-confluent needs a schema registry: set schema_registry.url")


def check_separate_monitor(settings: Settings) -> None:
    """Raise SettingsError where `lockkeeper run` runs the monitor: it and `lockkeeper monitor` would fence each other.

    Or where heartbeats are missing, as `lockkeeper run` takes the monitor for switched off.
    """
    if settings.monitor.mode != "separate":
        raise SettingsError(
            "monitor.mode: must be `separate` for `lockkeeper monitor`. Set it in the settings of `lockkeeper run`, "
            "too, which then leaves the monitor to `lockkeeper monitor`"
        )
