"""What a request is about, from its resource alone: a thing, its name, and what else it requests."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from policy.core.request import Request
from policy.core.suggest import nearest
from policy.systems.kit.validator import Validator
from policy.systems.lenses5.catalogue import Action, Thing, catalogue


class Target(msgspec.Struct, frozen=True):
    """``noun``: the thing in catalogue.yaml. ``fields``: fields that belong to the question, no claims."""

    noun: str
    name: str
    fields: Mapping[str, Any]

    @property
    def thing(self) -> Thing:
        """Its entry in the catalogue."""
        return catalogue().things[self.noun]


def find_target(request: Request, action: Action) -> Target:
    """What ``request`` is about; raises Unanswerable naming every property that is wrong.

    The name is the property of the thing (``consumer_group``, …), else ``resource.id``, which must agree with it.
    """
    form = Validator(request.resource.properties, "resource.properties")
    noun, named = _node(form) if action.about == "node" else (action.about, "")
    thing = catalogue().things[noun]
    fields = _dataset(form) if thing.type is not None else {}
    written = _named(form, thing, named)
    name = fields.get("dataset") or written or request.resource.id
    if written and written != request.resource.id and action.about != "node":
        form.error(f"{written!r} here and {request.resource.id!r} in resource.id", thing.property or "")
    if action.about == "administration" and form.has("feature"):
        _check_feature(form, request.action.name)
    if thing.property is not None:
        fields[thing.property] = name
    if action.operations and form.has("operation"):
        fields["operation"] = _operation(form, action)
    form.finish_request("malformed-properties")
    return Target(noun, name if thing.type or thing.property else "", fields)


def _dataset(form: Validator) -> dict[str, Any]:
    """A dataset is always named in full, so that no wildcard takes in a request that names none."""
    return {"connection": form.text("connection"), "dataset": form.text("dataset")}


def _named(form: Validator, thing: Thing, named: str) -> str:
    """The name that the properties give; "" when they give none."""
    written = form.text(thing.property, required=False) if thing.property is not None else ""
    if written and named and written != named:
        form.error(f"{written!r} here and {named!r} in node", thing.property or "")
    return written or named


def _node(form: Validator) -> tuple[str, str]:
    """What a topology request asks to see: the page, or a node as ``KIND``, ``KIND:NAME`` or a topic's own name."""
    node, page = form.text("node", required=False), form.raw("page")
    if page is True or (isinstance(page, str) and page):
        if node:
            form.error("either page or node can be asked for, not both", "node")
        return "topology page", ""
    kind, _, name = node.partition(":")
    noun, dataset = catalogue().nodes.get(kind, "topic"), form.raw("dataset")
    if noun == "topic" and node not in ("topic", f"topic:{dataset}", dataset):
        kinds = ", ".join(catalogue().nodes)
        form.error(f"{node!r} is not one of {kinds} (KIND:NAME names one), nor the dataset; or ask for a page", "node")
    return noun, name


def _check_feature(form: Validator, action: str) -> None:
    """The feature is the one that the action is of, as ``admin.audit-log.view`` is of "Audit Log"."""
    text, known = form.text("feature"), action.split(".")[1]
    if text and re.sub("[ _]", "-", text.casefold()) != known:
        form.error(f"{text!r} here, and the action is on {known}", "feature")


def _operation(form: Validator, action: Action) -> str:
    text, known = form.text("operation"), action.operations
    if text not in known:
        form.error(f"{text!r} is not one of {', '.join(known)}{nearest(text, known)}", "operation")
    return text
