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
    validator = Validator(request.resource.properties, "resource.properties")
    noun, named = _node(validator) if action.about == "node" else (action.about, "")
    thing = catalogue().things[noun]
    fields = _dataset(validator) if thing.type is not None else {}
    written = _named(validator, thing, named)
    name = fields.get("dataset") or written or request.resource.id
    if written and written != request.resource.id and action.about != "node":
        validator.error(f"{written!r} here and {request.resource.id!r} in resource.id", thing.property or "")
    if action.about == "administration" and validator.has("feature"):
        _check_feature(validator, request.action.name)
    if thing.property is not None:
        fields[thing.property] = name
    if action.operations and validator.has("operation"):
        fields["operation"] = _operation(validator, action)
    validator.finish_request("malformed-properties")
    return Target(noun, name if thing.type or thing.property else "", fields)


def _dataset(validator: Validator) -> dict[str, Any]:
    """A dataset is always named in full, so that no wildcard takes in a request that names none."""
    return {"connection": validator.text("connection"), "dataset": validator.text("dataset")}


def _named(validator: Validator, thing: Thing, named: str) -> str:
    """The name that the properties give; "" when they give none."""
    written = validator.text(thing.property, required=False) if thing.property is not None else ""
    if written and named and written != named:
        validator.error(f"{written!r} here and {named!r} in node", thing.property or "")
    return written or named


def _node(validator: Validator) -> tuple[str, str]:
    """What a topology request asks to see: the page, or a node as ``KIND``, ``KIND:NAME`` or a topic's own name."""
    node, page = validator.text("node", required=False), validator.raw("page")
    if page is True or (isinstance(page, str) and page):
        if node:
            validator.error("either page or node can be asked for, not both", "node")
        return "topology page", ""
    kind, _, name = node.partition(":")
    noun, dataset = catalogue().nodes.get(kind, "topic"), validator.raw("dataset")
    if noun == "topic" and node not in ("topic", f"topic:{dataset}", dataset):
        kinds = f"{', '.join(catalogue().nodes)} (KIND:NAME names one)"
        validator.error(f"{node!r} is not one of {kinds}, nor the dataset; or ask for a page", "node")
    return noun, name


def _check_feature(validator: Validator, action: str) -> None:
    """The feature is the one that the action is of, as ``admin.audit-log.view`` is of "Audit Log"."""
    text, feature = validator.text("feature"), action.split(".")[1]
    if text and re.sub("[ _]", "-", text.casefold()) != feature:
        validator.error(f"{text!r} here, and the action is on {feature}", "feature")


def _operation(validator: Validator, action: Action) -> str:
    text, operations = validator.text("operation"), action.operations
    if text not in operations:
        validator.error(f"{text!r} is not one of {', '.join(operations)}{nearest(text, operations)}", "operation")
    return text
