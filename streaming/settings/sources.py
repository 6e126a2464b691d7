"""Where settings come from: a YAML file, and environment variables `LOCKKEEPER_…`, which take precedence."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from policy import nearest
from streaming.settings.checks import check_settings
from streaming.settings.errors import SettingsError
from streaming.settings.former import REMOVED, REPLACED, take_former
from streaming.settings.model import Settings, Text, setting_types
from streaming.unique_yaml import DuplicateName, parse_yaml, place_of

PREFIX = "LOCKKEEPER_"
OTHER_VARIABLES = frozenset(
    f"LOCKKEEPER_{name}" for name in ("CONFIG", "IVY_SETTINGS", "AUTHOR", "COMMIT", "REASON")
)  # they are no settings of the job
TEST_PREFIX = "LOCKKEEPER_TEST_"
# Kubernetes sets variables for each Service of the namespace, this one for all of them.
SERVICE_HOST = re.compile(r"(LOCKKEEPER(?:_.+)?)_SERVICE_HOST")
SERVICE_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://\S+:\d+")


def load_settings(
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    warn: Callable[[str], None] = lambda _warning: None,
) -> Settings:
    """Read the YAML file, if any, and let `LOCKKEEPER_…` variables take precedence. Raises SettingsError.

    `warn`: called for each setting of the version before, see `take_former`.
    """
    data = _read(path) if path else {}
    for setting, value in _from_environment(os.environ if environment is None else environment):
        _set(data, setting, value)
    take_former(data, warn)
    return check_settings(data, str(path or "the environment"))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_yaml(path)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; name a file that can be read") from error
    if data is not None and not isinstance(data, dict):
        kind = type(data).__name__
        raise SettingsError(f"{path}: settings are a mapping such as `job_name: lockkeeper`, not a {kind}")
    return data or {}


def variable(path: tuple[str, ...]) -> str:
    """The environment variable of a setting: `topics.decisions` is `LOCKKEEPER_TOPICS_DECISIONS`."""
    return PREFIX + "_".join(path).upper()


def variables() -> dict[str, tuple[tuple[str, ...], Any]]:
    """Every environment variable that is a setting, with the setting's path and type."""
    return {variable(path): (path, type_) for path, type_ in setting_types(Settings)}


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    removed = {variable(path): (path, str) for path in REMOVED}  # as text: their values do not matter
    replaced = {variable(path): (path, None) for path in REPLACED}
    accepted = {**removed, **replaced, **variables()}
    _check_variables(environment, accepted)
    services = _service_variables(environment)
    for name, text in environment.items():
        # LOCKKEEPER_SERVE_PORT is what Kubernetes calls the address of a Service lockkeeper-serve, too.
        if name in accepted and not (services.fullmatch(name) and SERVICE_ADDRESS.fullmatch(text)):
            path, type_ = accepted[name]
            yield path, text if type_ in (str, Text) else parse_text(name, text)


def _check_variables(environment: Iterable[str], accepted: Iterable[str]) -> None:
    """An unknown variable must not be ignored: its setting would keep the default. Values may be secrets."""
    names, services = {*accepted, *OTHER_VARIABLES}, _service_variables(environment)
    unknown = sorted(
        name
        for name in environment
        if name.startswith(PREFIX)
        and name not in names
        and not name.startswith(TEST_PREFIX)
        and not services.fullmatch(name)
    )
    if unknown:
        hints = (f"{name}: there is no such setting{_variable_meant(name.upper(), names)}" for name in unknown)
        named = " ".join(hint if hint.endswith("?") else f"{hint}." for hint in hints)
        raise SettingsError(f"the environment: {named} Correct the name, or unset the variable")


def _variable_meant(name: str, names: Iterable[str]) -> str:
    """A variable in the wrong case, else the nearest one."""
    return f"; did you mean {name}?" if name in names else nearest(name, names, PREFIX)


def _service_variables(environment: Iterable[str]) -> re.Pattern[str]:
    """What Kubernetes calls the variables of its Services: NAME_SERVICE_HOST, NAME_SERVICE_PORT…, NAME_PORT…"""
    services = [re.escape(host[1]) for host in map(SERVICE_HOST.fullmatch, environment) if host]
    return re.compile(rf"(?:{'|'.join(services)})_(?:SERVICE_HOST|(?:SERVICE_)?PORT(?:_.+)?)" if services else r"(?!)")


def read_yaml(path: Path) -> Any:
    """What a file says, see `parse_text`. Raises SettingsError, and OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:  # which holds the file
        raise SettingsError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    return parse_text(str(path), text)


def parse_text(source: str, text: str) -> Any:
    """The YAML of a file or a variable. Raises SettingsError, which names the source and shows nothing of the text: it
    may be part of a secret.
    """
    try:
        return parse_yaml(text)
    except DuplicateName as error:
        raise SettingsError(
            f"{source}: a name that is there twice in one mapping{place_of(error)}: remove one"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"{source}: not YAML{place_of(error)}: put the value in quotes; a quote within single quotes is written "
            'twice, within double quotes as \\". What is there is not shown, as it may be a secret'
        ) from None


def _set(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    mapping: Any = data
    for name in path[:-1]:
        mapping = mapping.setdefault(name, {})
        if not isinstance(mapping, dict):
            raise SettingsError(f"{variable(path)}: {name}, which holds it, is not a mapping")
    mapping[path[-1]] = value
