"""`lockkeeper who-can | what-can`: who may do something, and what somebody may do."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import app
from streaming.cli.common_options import Json, KafkaOptions
from streaming.cli.failure import MISUSED, Failure
from streaming.cli.nearest import who_text
from streaming.cli.output import echo, echo_err, echo_json, echo_lines
from streaming.cli.request_options import (
    ActionOption,
    Asked,
    ContextOption,
    Evaluation,
    GroupsOption,
    PropertiesOption,
    ResourceOption,
    SubjectOption,
    SystemOption,
    refuse_unknown,
    request_of,
)

if TYPE_CHECKING:
    from policy.analysis import EffectivePermission, Permitted


UNNAMED = {"allow_extra_args": True}
"""Values without the names of options, as 0.1 took them, are not in the help."""


def with_unnamed(command: typer.Context, **options: str | None) -> Iterator[str | None]:
    """The values of options, by their order where they came without names. Raises Failure for more than there are."""
    left = list(command.args)
    for name, value in options.items():
        if value is None and left:
            echo_err(f"warning: write --{name} before {left[0]}: the next version takes it so alone")
            yield left.pop(0)
        else:
            yield value
    if left:
        raise Failure(f"{left[0]}: without an option's name", MISUSED)


@app.command("who-can", context_settings=UNNAMED)
def who_can(
    command: typer.Context,
    system: SystemOption = None,
    action: ActionOption = None,
    resource: ResourceOption = None,
    property_: PropertiesOption = None,
    context: ContextOption = None,
    organization: Annotated[
        str | None, typer.Option(help="The subject's organization, where there are several (StreamSets).")
    ] = None,
    *,
    evaluation: Evaluation,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """List whom the policies allow an action on a resource: subjects, and subjects that claim a group or role.

    Every name in the documents is checked; subjects that they do not name are listed as "any principal".

    \b
    Examples:
      lockkeeper who-can --policies policies/ --system lenses6 --action kafka:DeleteTopic \\
        --resource kafka:topic:prod/main/orders
      lockkeeper who-can --live --system lenses6 --action kafka:DeleteTopic --resource kafka:topic:prod/main/orders
    """
    from policy import MalformedRequest
    from policy.analysis import unknown_names
    from policy.analysis import who_can as find
    from streaming.pdp.reading import lacking

    action, resource = with_unnamed(command, action=action, resource=resource)
    short = Asked(None, "any-principal", None, action, resource, property_, context).short_form()
    request = request_of(system, short | ({"organization": organization} if organization else {}))
    (snapshot, offsets), claims = evaluation.snapshot_and_offsets(kafka), evaluation.claims()
    request = evaluation.timed(request)
    try:
        refuse_unknown(unknown_names(snapshot, request, claims, subject=False), evaluation.allow_unknown)
        reach = find(snapshot, request, trust=claims)
        behind = lacking(request, offsets)
    except MalformedRequest as malformed:
        raise Failure(str(malformed), MISUSED) from malformed
    if behind is not None:
        raise Failure(behind)
    if as_json:
        echo_json(reach)
        return
    if reach.everyone:
        echo("any principal, also those that no document names" + (", but not:" if reach.but else ""))
    for who in reach.but if reach.everyone else reach.allowed:
        echo(who_text(who))
    if not reach.complete:
        system = request["system"]
        echo_err(f"not complete: only principals that the policies and facts of {system} name were checked")
    elif not reach.everyone and not reach.allowed:
        echo_err("no principal in the documents; `lockkeeper explain` shows what a subject lacks")


@app.command("what-can", context_settings=UNNAMED)
def what_can(
    command: typer.Context,
    system: SystemOption = None,
    subject: SubjectOption = None,
    group: GroupsOption = None,
    *,
    evaluation: Evaluation,
    kafka: KafkaOptions,
    as_json: Json = False,
) -> None:
    """List what a subject is allowed and denied, each with the statement and the way by which it has it.

    Of a system with an engine of its own (Cedar), the actions on resources that documents name, and that are allowed.

    \b
    Examples:
      lockkeeper what-can --policies policies/ --system lenses6 --subject user:dana
      lockkeeper what-can --live --system lenses6 --subject user:dana --group readers
    """
    from policy import MalformedRequest, to_ms
    from policy.analysis import unknown_subject, what_subject_can

    [subject] = with_unnamed(command, subject=subject)
    asked = request_of(system, Asked(None, subject, group, "any", "any").short_form())
    system = str(asked["system"])
    (snapshot, _), at = evaluation.snapshot_and_offsets(kafka), evaluation.time()
    try:
        moment = None if at is None else to_ms(at)
        claims = evaluation.claims()
        refuse_unknown(unknown_subject(snapshot, system, asked["subject"], moment, claims), evaluation.allow_unknown)
        permissions = what_subject_can(snapshot, system, asked["subject"], moment, claims)
    except (MalformedRequest, ValueError) as error:
        raise Failure(str(error), MISUSED) from error
    if as_json:
        echo_json(permissions)
        return
    for permission in permissions:
        echo_lines(_what(permission, system))
    if not permissions:
        echo_err(f"{subject} is allowed and denied nothing: no statement applies to it")


def _what(permission: "EffectivePermission | Permitted", system: str) -> Iterator[str]:
    from policy import all_systems
    from policy.analysis import Permitted, grant_text

    if isinstance(permission, Permitted):
        yield f"allow {permission.action} on {permission.type} {permission.id}"
        return
    grant, own = permission.grant, all_systems()[system]
    text = grant_text(grant, own).removeprefix(f"{grant.principal} ")
    yield f"{text} [{grant.statement_id}; {permission.route}]"
    yield from (f"  denied in whole by {deny.statement_id}" for deny in permission.cancelled_by)
    yield from (f"  denied in part by {deny.statement_id}: {grant_text(deny, own)}" for deny in permission.narrowed_by)
