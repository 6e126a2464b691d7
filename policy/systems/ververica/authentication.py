"""Who the identity provider says a user is: the Authentication document, and the groups of a token."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import CompiledDocument, Reason, Unanswerable
from policy.core.request import Request
from policy.systems.kit.claims import Claimed, check_count, check_names, claimed, names_in
from policy.systems.kit.fact_changes import FactChange
from policy.systems.kit.validator import Validator, one_fact
from policy.systems.ververica.catalogue import catalogue

KIND = "Authentication"
SECRET = "clientSecret"
GROUPS_LINK = "http://schemas.microsoft.com/claims/groups.link"  # Entra ID's SAML attribute in place of the groups


def read_authentication(document: Document) -> CompiledDocument:
    """The settings ``oidc`` and ``saml`` (VV-GROUP-SOURCE); secrets are refused.

    What is known of them: enabled protocol → the claim or attribute that names the groups; "" when it is not set.
    """
    validator = Validator(document.spec)
    read = {protocol: _read_protocol(validator, protocol) for protocol in catalogue()["protocols"]}
    groups = {protocol: setting for protocol, setting in read.items() if setting is not None}
    return one_fact(document, validator, groups, (("protocol", protocol) for protocol in groups))


def _read_protocol(validator: Validator, protocol: str) -> str | None:
    """The name of the groups claim, "" when it is not set; None when the protocol is off."""
    if not validator.has(protocol):
        return None
    settings = validator.mapping(protocol)
    enabled = settings.flag("enabled")
    fields = catalogue()["protocols"][protocol]
    if settings.has(SECRET):
        settings.error("a topic is no place for a secret: leave it out", SECRET)
    for field in fields["other"]:
        settings.text(field, required=False)
    names = {name for section in _places(settings, protocol) if (name := _groups_name(section, fields["groups"]))}
    if len(names) > 1:
        settings.error(f"{' and '.join(sorted(names))} are two names for one setting: keep one (VV-Q5)")
    settings.reject_unknown()
    return min(names, default="") if enabled else None


def _places(settings: Validator, protocol: str) -> tuple[Validator, ...]:
    """Where the setting may stand: SAML's in ``identity-provider``, or beside it."""
    if protocol == "oidc" or not settings.has("identity-provider"):
        return (settings,)
    return (settings, settings.mapping("identity-provider"))


def _groups_name(section: Validator, spellings: list[str]) -> str:
    names = {name for spelling in spellings if (name := section.text(spelling, required=False))}
    if len(names) > 1:
        section.error(f"{' and '.join(spellings)} are one setting and differ: keep one (VV-Q5)")
    if section.where.endswith("identity-provider"):
        section.reject_unknown()
    return min(names, default="")


def claims_opened(change: FactChange, facts: Facts) -> Iterator[tuple[str, str]]:
    """The protocols whose tokens give groups by a change of one document, each with the claim that names them.

    ``facts``: after the change. Where a protocol is no longer enabled, a token of both that was ambiguous may give the
    groups of the other. A claim that documents named before, whichever they were, opens nothing again.
    """
    before, after = (body or {} for body in change.bodies)
    is_disabled = any(not facts.find(KIND, "protocol", protocol) for protocol in before)
    edited = [fact.body for said in change.edited.values() for fact in said]
    for protocol in catalogue()["protocols"]:
        names, unedited = (_groups_claims(facts, protocol, without) for without in ((), change.edited.keys()))
        was, is_now = before.get(protocol, ""), after.get(protocol, "")
        were_named = unedited.union(groups.get(protocol, "") for groups in edited) - {""}
        was_named = was == "" and unedited == names
        is_named = was != is_now and was not in names and not was_named and names != were_named
        if len(names) == 1 and (is_disabled or is_named):
            yield protocol, min(names)


def groups_of(request: Request, facts: Facts, trust: frozenset[str]) -> tuple[Claimed, tuple[Reason, ...]]:
    """The user's groups: those of the token where there is one, else those that the request claims. With notes.

    A token that names another user, or is malformed, raises Unanswerable.
    """
    token = request.subject.properties.get("token")
    if token is not None and "token" in trust:
        return _of_token(request, token, facts)
    groups = claimed(request, "groups", "VV-BIND-GROUP", trust, blanks=True)  # VV-Q11
    unused = ("token",) if token is not None else ()
    return Claimed(groups.names, groups.used, (*groups.untrusted, *unused)), ()


def _of_token(request: Request, token: object, facts: Facts) -> tuple[Claimed, tuple[Reason, ...]]:
    """Groups that the token does not have do not count, even if the request claims them (VV-GROUP-MISSING)."""
    if not isinstance(token, Mapping):
        raise Unanswerable("malformed-claim", "subject.properties.token must be a mapping of claims", "VV-GROUP-SOURCE")
    protocol = _protocol(_identifiers(token, request.subject.id), facts)
    name = _groups_claim(facts, protocol)
    if not name:
        return Claimed((), ("token",)), _ignored(request)
    claims, path = _claims(token, protocol)
    groups = _groups_in(claims, path, name, request.max_claimed_groups)
    return Claimed(groups, ("token",)), (*_ignored(request), *_missing(claims, path, name))


def _identifiers(token: Mapping[str, Any], subject: str) -> dict[str, str]:
    """Protocol → where the token names its user: the subject, everywhere, letter by letter (VV-BIND-USER, VV-Q6).

    One without a subject has claims of an ID token: the request says whose they are.
    """
    by_protocol = {protocol: fields["identifier"] for protocol, fields in catalogue()["protocols"].items()}
    present = {protocol: identifier for protocol, identifier in by_protocol.items() if identifier in token}
    for identifier in present.values():
        if token[identifier] != subject:
            message = f"subject.properties.token is not {subject}'s: its {identifier} is {token[identifier]!r}"
            raise Unanswerable("token-mismatch", message, "VV-BIND-USER")
    return present or {"oidc": by_protocol["oidc"]}


def _protocol(identifiers: Mapping[str, str], facts: Facts) -> str:
    """The enabled protocol among those whose identifier the token has; "" when none of them is enabled."""
    if broken := facts.broken(KIND):
        message = f"ververica/{KIND}/{broken[0]} was refused and has no earlier good version, so groups are not known"
        raise Unanswerable("refused-document", message, "VV-GROUP-SOURCE")
    enabled = [protocol for protocol in identifiers if facts.find(KIND, "protocol", protocol)]
    if len(enabled) > 1:  # one provider's word must not be read as the other's
        both = f"both {' and '.join(identifiers.values())}, and {' and '.join(enabled)} are enabled"
        raise Unanswerable("ambiguous-token", f"subject.properties.token has {both}: send one", "VV-GROUP-SOURCE")
    return enabled[0] if enabled else ""


def _claims(token: Mapping[str, Any], protocol: str) -> tuple[Mapping[str, Any], str]:
    """Where the protocol has its groups, and what an error calls that: beside the user, or in SAML's attributes."""
    path = "subject.properties.token"
    if protocol == "oidc":
        return token, path
    attributes = token.get("attributes") or {}
    if not isinstance(attributes, Mapping):
        raise Unanswerable("malformed-claim", f"{path}.attributes must be a mapping", "VV-GROUP-SOURCE")
    return attributes, f"{path}.attributes"


def _groups_claim(facts: Facts, protocol: str) -> str:
    """The claim that names the groups, as set; "" when it is not set, and then there are no groups."""
    names = _groups_claims(facts, protocol)
    if len(names) > 1:
        message = f"{KIND} documents name different {protocol} group claims: {', '.join(sorted(names))}; keep one"
        raise Unanswerable("ambiguous-authentication", message, "VV-GROUP-SOURCE")
    return min(names, default="")


def _groups_claims(facts: Facts, protocol: str, without: Collection[str] = ()) -> set[str]:
    """All claims that documents name, but for some documents; more than one contradict each other."""
    documents = sorted(facts.find(KIND, "protocol", protocol).difference(without))
    bodies = (facts.get(KIND, document) for document in documents)
    return {body[protocol] for body in bodies if body is not None} - {""}


def _groups_in(claims: Mapping[str, Any], path: str, name: str, most: int) -> tuple[str, ...]:
    """A list of texts, or one text split at its commas; nothing is trimmed (VV-GROUP-SOURCE, VV-Q11)."""
    written, field = claims.get(name), f"{path}.{name}"
    if isinstance(written, str):
        check_count(written.count(",") + 1, most, field, "VV-GROUP-SOURCE")
        groups = tuple(sorted(set(written.split(","))))
    else:
        groups = names_in(claims, name, field, "VV-GROUP-SOURCE", most)
    check_names(groups, field, "VV-GROUP-SOURCE", blanks=True)
    return groups


def _missing(claims: Mapping[str, Any], path: str, name: str) -> tuple[Reason, ...]:
    """Why the token names no groups though the settings say where it would; () where it names them, if only none."""
    if claims.get(name) is not None:
        return ()
    sign = _overage(claims, name)
    message = (
        f"{path} does not list the groups: by its {sign} there are too many for a token. Let the identity provider "
        "send only the groups that are assigned to the application"
        if sign
        else f"{path} has no {name}, which the {KIND} document names as the claim of groups: no group counts"
    )
    return (Reason("claim-missing", message, "VV-GROUP-SOURCE"),)


def _overage(claims: Mapping[str, Any], name: str) -> str:
    """The sign of Entra ID that it left out the groups (over 200 in a JWT, 150 in SAML), and of OpenID Connect Core,
    5.6.2, that a claim is elsewhere; "" when there is none. What it points to is not fetched: the token names the URL.
    """
    elsewhere = claims.get("_claim_names")
    signs = {
        "_claim_names": isinstance(elsewhere, Mapping) and name in elsewhere,
        "hasgroups": claims.get("hasgroups") in (True, "true"),
        GROUPS_LINK: GROUPS_LINK in claims,
    }
    return next((sign for sign, there in signs.items() if there), "")


def _ignored(request: Request) -> tuple[Reason, ...]:
    if "groups" not in request.subject.properties:
        return ()
    message = "subject.properties.groups is not used: only the groups of the token count"
    return (Reason("claim-ignored", message, "VV-GROUP-MISSING"),)
