"""Conditions that are not permissions: the `fact` leaves of catalogue.yaml."""

from collections.abc import Callable
from typing import Any

import msgspec

from policy.core.model import Condition, Unanswerable
from policy.systems.kit.query import check_name
from policy.systems.kit.validator import Validator
from policy.systems.streamsets.access import Access
from policy.systems.streamsets.catalogue import catalogue, reference, type_of
from policy.systems.streamsets.engines import current, engines_of
from policy.systems.streamsets.objects import PRINCIPAL_PREFIXES, read_levels

Context = dict[str, Any]


class CheckInput(msgspec.Struct, frozen=True):
    """A condition in its place: on which object, in which context of the request, by which rule."""

    access: Access
    name: str
    context: Context
    rule: str


Check = Callable[[CheckInput], Condition | None]  # None: the request asks for nothing that needs checking


def grant(request: CheckInput) -> Condition:
    """context.grant gives users or groups levels that objects of the type have (SS-SHARE-WHO)."""
    if request.context.get("grant") is None:
        return Condition(None, "the levels and principals to share are not given: context.grant", request.rule)
    validator = Validator(request.context["grant"], "context.grant")
    levels = read_levels(validator, catalogue().types[type_of(request.name)])
    if not levels and not validator.errors:
        validator.error("names no principal")
    validator.finish_request("malformed-grant", request.rule)
    return Condition(True, f"{request.name} can be shared like this", request.rule)


def new_owner(request: CheckInput) -> Condition:
    """context.new_owner is a user, not a group (SS-OWN-CHANGE, SS-Q21)."""
    written = request.context.get("new_owner")
    if written is None:
        return Condition(None, "who is to be the owner is not given: context.new_owner", request.rule)
    if not isinstance(written, str) or not written.startswith(PRINCIPAL_PREFIXES) or written in PRINCIPAL_PREFIXES:
        raise Unanswerable("malformed-owner", f"context.new_owner: {written!r} is not user:NAME", request.rule)
    check_name(written, "context.new_owner")
    if written.removeprefix("user:").startswith(PRINCIPAL_PREFIXES):
        return Condition(False, f"{written} cannot own {request.name}: an owner is a user", request.rule)
    return Condition(True, f"{written} can own {request.name}", request.rule)


def version(request: CheckInput) -> Condition | None:
    """context.version, if given, is a version the object has; permissions hold for every one of them."""
    written, newest = request.context.get("version"), current(request.access, request.name)
    if isinstance(newest, Condition) or written is None:
        return None
    if newest.numbers is None or str(written) in newest.numbers:
        return Condition(True, f"a permission on {request.name} is one on all of its versions", request.rule)
    return Condition(None, f"{request.name} has no version {written!r} that is known", request.rule)


def engine_of_kind(request: CheckInput) -> Condition | None:
    """context.engine, if given, is an engine of the kind that the pipeline runs on (SS-PIPE-DOWNLOAD)."""
    if request.context.get("engine") is None:
        return None
    engine = named(request.context, "engine", "engine")
    pipeline_version, engine_version = current(request.access, request.name), current(request.access, engine)
    if isinstance(pipeline_version, Condition):
        return pipeline_version
    if isinstance(engine_version, Condition):
        return engine_version
    pipeline_kind, engine_kind = pipeline_version.kind, engine_version.kind
    if pipeline_kind is None or engine_kind is None:
        return Condition(None, f"of which kinds {request.name} and {engine} are is not known", request.rule)
    message = f"{engine} is a {engine_kind}, {request.name} a {pipeline_kind} pipeline"
    return Condition(engine_kind == pipeline_kind, message, request.rule)


def runs_on_engine(request: CheckInput) -> Condition:
    """The job is active and context.engine is one of its engines (SS-JOB-RUN-INHERIT)."""
    engine, start = named(request.context, "engine", "engine"), request.access.start_of_run(request.name)
    engines = engines_of(request.access, request.name, start)
    if isinstance(engines, Condition):
        return engines
    if start is None:
        return Condition(False, f"{request.name} is not active, so no engine runs its pipeline", request.rule)
    runs = engine in engines
    version = current(request.access, engine)
    home = version if isinstance(version, Condition) else request.access.organization_of(version)
    if runs and isinstance(home, Condition):  # of several organizations it may be another one's
        return home
    return Condition(
        runs, f"{engine} {'runs' if runs else 'does not run'} the pipeline of {request.name}", request.rule
    )


def named(context: Context, field: str, type_: str) -> str:
    """The object of ``type_`` that a field of the context names; raises Unanswerable."""
    try:
        return reference(context.get(field), type_)
    except ValueError as error:
        raise Unanswerable("malformed-context", f"context.{field}: {error}") from None


CHECKS: dict[str, Check] = {
    "grant": grant,
    "new-owner": new_owner,
    "version": version,
    "engine-of-kind": engine_of_kind,
    "runs-on-engine": runs_on_engine,
}
