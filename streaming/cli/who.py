"""`lockkeeper who-can | what-can`: who may do something, and what somebody may do."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import MISUSED, Bootstrap, Config, Failure, Json, app, echo, echo_err, echo_json
from streaming.cli.nearest import who_text
from streaming.cli.request_options import (
    AllowUnknown,
    At,
    ContextOption,
    GroupsOption,
    Live,
    PoliciesOrLive,
    PropertiesOption,
    Trust,
    policies_of,
    refuse_unknown,
    short_form,
    timed,
    timed_claims,
    whole_request,
)

if TYPE_CHECKING:
    from policy.analysis import EffectivePermission, Permitted


@app.command("who-can")
def who_can(
    action: Annotated[str, typer.Argument(help="What to do: the action's name.", show_default=False)],
    resource: Annotated[str, typer.Argument(help="On what: the resource's id.", show_default=False)],
    system: Annotated[str, typer.Option(help="Such as lenses6.", show_default=False)],
    policies: PoliciesOrLive = None,
    live: Live = False,
    property_: PropertiesOption = None,
    context: ContextOption = None,
    organization: Annotated[
        str | None, typer.Option(help="The subject's organization, where there are several (StreamSets).")
    ] = None,
    at: At = None,
    trust: Trust = None,
    allow_unknown: AllowUnknown = False,
    config: Config = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """List whom the policies allow an action on a resource: subjects, and subjects that claim a group or role.

    Every name in the documents is checked; subjects that they do not name are listed as "any principal".

    \b
    Examples:
      lockkeeper who-can kafka:DeleteTopic kafka:topic:prod/main/orders --system lenses6 --policies policies/
      lockkeeper who-can kafka:DeleteTopic kafka:topic:prod/main/orders --system lenses6 --live
    """
    import msgspec

    from policy import MalformedRequest
    from policy.analysis import unknown_names
    from policy.analysis import who_can as find

    short = short_form("any-principal", None, action, resource, property_, context)
    request = whole_request(None, system, short | ({"organization": organization} if organization else {}))
    snapshot, request, claims = (
        policies_of(policies, live, config, bootstrap),
        timed(request, at),
        timed_claims(trust, at),
    )
    try:
        refuse_unknown(unknown_names(snapshot, request, claims, subject=False), allow_unknown)
        reach = find(snapshot, request, trust=claims)
    except MalformedRequest as malformed:
        raise Failure(str(malformed), MISUSED) from malformed
    if as_json:
        echo_json(msgspec.to_builtins(reach))
        return
    if reach.everyone:
        echo("any principal, also those that no document names" + (", but not:" if reach.but else ""))
    for who in reach.but if reach.everyone else reach.allowed:
        echo(who_text(who))
    if not reach.complete:
        echo_err(f"not complete: only principals that the policies and facts of {system} name were checked")
    elif not reach.everyone and not reach.allowed:
        echo_err("no principal in the documents; `lockkeeper explain` shows what a subject lacks")


@app.command("what-can")
def what_can(
    subject: Annotated[str, typer.Argument(help="Who: the subject's id.", show_default=False)],
    system: Annotated[str, typer.Option(help="Such as lenses6.", show_default=False)],
    group: GroupsOption = None,
    policies: PoliciesOrLive = None,
    live: Live = False,
    at: At = None,
    trust: Trust = None,
    allow_unknown: AllowUnknown = False,
    config: Config = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """List what a subject is allowed and denied, each with the statement and the way by which it has it.

    Of a system with an engine of its own (Cedar), the actions on resources that documents name, and that are allowed.

    \b
    Examples:
      lockkeeper what-can user:dana --system lenses6 --policies policies/
      lockkeeper what-can user:dana --system lenses6 --group readers --live
    """
    import msgspec

    from policy import MalformedRequest, to_ms
    from policy.analysis import unknown_subject, what_subject_can

    asked = whole_request(None, system, short_form(subject, group, "any", "any", None, None))
    snapshot = policies_of(policies, live, config, bootstrap)
    try:
        moment = None if at is None else to_ms(int(at) if at.isdecimal() else at)
        claims = timed_claims(trust, at)
        refuse_unknown(unknown_subject(snapshot, system, asked["subject"], moment, claims), allow_unknown)
        found = what_subject_can(snapshot, system, asked["subject"], moment, claims)
    except (MalformedRequest, ValueError) as error:
        raise Failure(str(error), MISUSED) from error
    if as_json:
        echo_json(msgspec.to_builtins(found))
        return
    for one in found:
        for line in _what(one, system):
            echo(line)
    if not found:
        echo_err(f"{subject} is allowed and denied nothing: no statement applies to it")


def _what(found: "EffectivePermission | Permitted", system: str) -> Iterator[str]:
    from policy import all_systems
    from policy.analysis import Permitted, grant_text

    if isinstance(found, Permitted):
        yield f"allow {found.action} on {found.type} {found.id}"
        return
    grant, own = found.grant, all_systems()[system]
    text = grant_text(grant, own).removeprefix(f"{grant.principal} ")
    yield f"{text} [{grant.statement_id}; {found.route}]"
    yield from (f"  denied in whole by {deny.statement_id}" for deny in found.cancelled_by)
    yield from (f"  denied in part by {deny.statement_id}: {grant_text(deny, own)}" for deny in found.narrowed_by)
