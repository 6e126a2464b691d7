"""Settings of the version before: removed ones have no effect any more, replaced ones have that of their successor.

Both are accepted for one version, with a warning, so that a new version starts with the file of the one before.
"""

from collections.abc import Callable, Mapping
from typing import Any

from streaming.settings.errors import SettingsError
from streaming.topics import DEFAULT_SYSTEMS

Path = tuple[str, ...]

ALGORITHM = "a key of the issuer verifies the algorithm that it names, else RS256 or that of its curve"
CONSTANT = "the value that was its default always holds"
REMOVED: Mapping[Path, str] = {
    ("candidate",): "lockkeeper policy diff --newest and lockkeeper replay try policies on past requests",
    ("snapshots_kept",): CONSTANT,
    ("answer_clock_skew",): CONSTANT,
    ("idle_seconds",): CONSTANT,
    ("idle_commit_seconds",): CONSTANT,
    ("max_batch_seconds",): "a transaction is bounded by max_records and max_batch_bytes, and by 3 s of deciding",
    ("limits", "cached_decisions"): CONSTANT,
    ("limits", "cached_bytes"): CONSTANT,
    ("limits", "claimed_groups"): CONSTANT,
    ("log", "decisions"): "lockkeeper tail decisions shows each decision",
    ("monitor", "accesses_per_subject"): CONSTANT,
    ("monitor", "max_records"): "the monitor takes two and a half times max_records, at most 500,000",
    ("monitor", "trigger_seconds"): "the monitor starts a batch each rules.grace_seconds, within 1 to 5 s",
    ("serve", "wait_seconds"): CONSTANT,
    ("serve", "poll_seconds"): CONSTANT,
    ("serve", "request_seconds"): CONSTANT,
    ("serve", "max_connections"): CONSTANT,
    ("serve", "max_requests"): CONSTANT,
    ("serve", "name"): "records name the machine by its host name",
    ("serve", "record_topic"): "answers are recorded on the first topic of topics.answered",
    ("serve", "record_queue"): CONSTANT,
    ("serve", "record_full"): "an answer that cannot be recorded is an error",
    ("serve", "jwt", "leeway_seconds"): CONSTANT,
    ("serve", "jwt", "algorithms"): ALGORITHM,
    ("console", "session_seconds"): CONSTANT,
    ("console", "oidc", "scopes"): CONSTANT,
    ("console", "oidc", "algorithms"): ALGORITHM,
}
"""Settings without effect, and what takes their place."""

REPLACED: Mapping[Path, str] = {
    ("monitor", "enabled"): "monitor.mode: none, in place of false",
    ("monitor", "separate"): "monitor.mode: separate, in place of true",
    ("policy", "require_author"): "policy.require, a list of author, commit and reason",
    ("policy", "require_commit"): "policy.require, a list of author, commit and reason",
    ("policy", "require_reason"): "policy.require, a list of author, commit and reason",
    ("serve", "record_systems"): "serve.record, which may be a mapping by system",
    ("tracing", "enabled"): "tracing.endpoint, which is empty for no traces",
}
"""Settings that still have their effect as a part of another one, and which that is."""

TRACES = "http://localhost:4318/v1/traces"  # the default of tracing.endpoint, beside tracing.enabled: false


def take_former(data: dict[str, Any], warn: Callable[[str], None]) -> None:
    """Drop removed settings, and set in place of replaced ones what they mean now. Raises SettingsError.

    `data`: of the file and the environment; it is changed. `warn`: called for each former setting that is set.
    """
    for path in [path for path in REMOVED if _is_set(data, path)]:
        _mapping_of(data, path).pop(path[-1])
        warn(f"{'.'.join(path)} is no setting any more and has no effect: {REMOVED[path]}. Remove it")
    former = {path: _mapping_of(data, path).pop(path[-1]) for path in REPLACED if _is_set(data, path)}
    for path in former:
        warn(f"{'.'.join(path)} is replaced, and has its effect in this version alone. Set {REPLACED[path]}")
    for section in {path[0] for path in former}:
        _SUCCESSORS[section](data, former)


def _monitor_mode(data: dict[str, Any], former: Mapping[Path, Any]) -> None:
    mode = "separate" if _is_on(former, ("monitor", "separate"), False) else "job"
    data["monitor"].setdefault("mode", mode if _is_on(former, ("monitor", "enabled"), True) else "none")


def _required(data: dict[str, Any], former: Mapping[Path, Any]) -> None:
    names = [name for name in ("author", "commit", "reason") if _is_on(former, ("policy", f"require_{name}"), False)]
    required = data["policy"].get("require", [])
    data["policy"]["require"] = [*required, *names] if isinstance(required, list) else required


def _record(data: dict[str, Any], former: Mapping[Path, Any]) -> None:
    """`record` was that of all systems that `record_systems` did not name."""
    by_system, others = former["serve", "record_systems"], data["serve"].get("record", "all")
    if not isinstance(by_system, dict):
        data["serve"]["record"] = by_system  # refused as any other value of it
    elif by_system and not isinstance(others, dict):
        systems = data.get("systems", DEFAULT_SYSTEMS)
        named = [system for system in systems if isinstance(system, str)] if isinstance(systems, list | tuple) else []
        data["serve"]["record"] = {**dict.fromkeys(named, others), **by_system}


def _endpoint(data: dict[str, Any], former: Mapping[Path, Any]) -> None:
    """While tracing was off, an endpoint had no effect."""
    if _is_on(former, ("tracing", "enabled"), False):
        data["tracing"].setdefault("endpoint", TRACES)
    else:
        data["tracing"]["endpoint"] = ""


_SUCCESSORS: Mapping[str, Callable[[dict[str, Any], Mapping[Path, Any]], None]] = {
    "monitor": _monitor_mode,
    "policy": _required,
    "serve": _record,
    "tracing": _endpoint,
}


def _is_on(former: Mapping[Path, Any], path: Path, default: bool) -> bool:
    value = former.get(path, default)
    if not isinstance(value, bool):
        raise SettingsError(f"{'.'.join(path)}: must be true or false. It is replaced by {REPLACED[path]}")
    return value


def _mapping_of(data: Any, path: Path) -> Any:
    """What holds the last name of a path; None: nothing does."""
    for name in path[:-1]:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _is_set(data: dict[str, Any], path: Path) -> bool:
    mapping = _mapping_of(data, path)
    return isinstance(mapping, dict) and path[-1] in mapping
