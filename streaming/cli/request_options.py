"""Options by which commands take a request, policies and trust."""

import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streaming.cli.cluster import connect
from streaming.cli.common_options import KafkaOptions
from streaming.cli.failure import MISUSED, Failure
from streaming.cli.grouped_options import Options
from streaming.cli.output import echo_err

if TYPE_CHECKING:
    from policy import Snapshot
    from policy.analysis import UnknownName
    from streaming.topics import Offsets

STANDARD_INPUT = "-"
INT64_DIGITS = 19

SystemOption = Annotated[str | None, typer.Option("--system", help="Such as lenses6.")]
SubjectOption = Annotated[str | None, typer.Option("--subject", help="Who: the subject's id.")]
GroupsOption = Annotated[list[str] | None, typer.Option("--group", help="A group the subject claims; may be repeated.")]
ActionOption = Annotated[str | None, typer.Option("--action", help="What to do: the action's name.")]
ResourceOption = Annotated[str | None, typer.Option("--resource", help="On what: the resource's id.")]
PropertiesOption = Annotated[
    list[str] | None, typer.Option("--property", help="NAME=VALUE of the resource; may be repeated.")
]
ContextOption = Annotated[str | None, typer.Option("--context", help="The request's context, in JSON.")]
FileOption = Annotated[
    str | None, typer.Option("--file", "-f", help="A whole request in JSON, instead; - is standard input.")
]
AllowUnknown = Annotated[
    bool, typer.Option("--allow-unknown", help="Accept names that no catalogue has, or that look like typing errors.")
]
Policies = Annotated[Path, typer.Option("--policies", "-p", help="A file or folder of documents.", show_default=False)]
Trust = Annotated[str | None, typer.Option("--trust", help="What requests may claim, with commas between.")]


@dataclass(frozen=True)
class Asked(Options):
    """A request."""

    system: SystemOption = None
    subject: SubjectOption = None
    group: GroupsOption = None
    action: ActionOption = None
    resource: ResourceOption = None
    property_: PropertiesOption = None
    context: ContextOption = None
    file: FileOption = None

    def short_form(self) -> dict[str, Any]:
        """What was given, in the short form of case files. Raises Failure for a property or context that is none."""
        options = {"subject": self.subject, "groups": self.group, "action": self.action, "resource": self.resource}
        short: dict[str, Any] = {name: value for name, value in options.items() if value}
        if self.property_:
            short["properties"] = _pairs(self.property_)
        if self.context is not None:
            short["context"] = _object("--context", self.context)
        return short

    def whole(self) -> dict[str, Any]:
        """The request in a file, or the one that options say in short. Raises Failure when there is not one of both."""
        short = self.short_form()
        if self.file is None:
            return request_of(self.system, short, ", or use --file with a whole request")
        if self.system or short:
            raise Failure("--file holds the whole request: leave out the options that describe another", MISUSED)
        return _object(f"--file {self.file}", _read(self.file))


@dataclass(frozen=True)
class Evaluation(Options):
    """By which policies, at which moment and with which claims a question is answered."""

    policies: Annotated[
        Path | None, typer.Option("--policies", "-p", help="A file or folder of documents.", show_default=False)
    ] = None
    live: Annotated[
        bool, typer.Option("--live", help="Instead of --policies: those that are in force on Kafka now.")
    ] = False
    at: Annotated[
        str | None,
        typer.Option(
            "--at", help="The request's time, by the same policies: RFC 3339, or ms since 1970; with --live now."
        ),
    ] = None
    trust: Trust = None
    allow_unknown: AllowUnknown = False

    def snapshot_and_offsets(self, kafka: KafkaOptions) -> "tuple[Snapshot, Offsets]":
        """The documents of a path, or those on Kafka, with the newest offsets that were read; of a path there are none.

        Raises Failure unless one of both is wanted; FilesRefused.
        """
        if (self.policies is None) is not self.live:
            raise Failure("name the policies: --policies PATH, or --live for those in force on Kafka", MISUSED)
        return (snapshot_of(self.policies), {}) if self.policies is not None else live_snapshot(kafka)

    def time(self) -> int | str | None:
        """The moment as requests have it: that of --at; now for what is in force now; else none."""
        if self.at is None:
            return time.time_ns() // 1_000_000 if self.live else None
        if not self.at.isdecimal():
            return self.at
        return int(self.at) if len(self.at) <= INT64_DIGITS else self.at  # Python reads no number of 4,301 digits

    def timed(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request with the moment; its own, where it has one that counts, unless --at names another."""
        is_own = self.at is None and request.get("time") is not None and "time" in claims_of(self.trust)
        at = None if is_own else self.time()
        return request if at is None else {**request, "time": at}

    def claims(self) -> frozenset[str]:
        """What counts of a request: a moment of --at, or of now, is no claim of it. Raises Failure."""
        return claims_of(self.trust) | ({"time"} if self.at is not None or self.live else frozenset())

    def is_given(self) -> bool:
        """Whether there is any but --allow-unknown."""
        return bool(self.policies or self.live or self.at) or self.trust is not None


def refuse_unknown(unknown: "Iterable[UnknownName]", allowed: bool) -> None:
    """Raise Failure for typing errors, unless they are `allowed`; print the other names."""
    names = list(unknown)
    refuse_mistakes([str(name) for name in names if name.is_mistake and not allowed])
    for name in names:
        echo_err(str(name))


def refuse_mistakes(mistakes: Sequence[str]) -> None:
    """Raise Failure where there are any: typing errors in names, each as a message."""
    if mistakes:
        raise Failure(mistakes[0], MISUSED, [*mistakes[1:], "--allow-unknown accepts names as they are"])


def request_of(system: str | None, short: dict[str, Any], instead: str = "") -> dict[str, Any]:
    """The request that options say in short. Raises Failure for what is not there; `instead`: what else to do."""
    from policy.testing import full_request

    lacking = [name for name in ("subject", "action", "resource") if name not in short]
    if system is None or lacking:
        options = ", ".join(f"--{name}" for name in ([] if system else ["system"]) + lacking)
        raise Failure(f"{options}: required; give a value for each{instead}", MISUSED)
    return {**full_request(short, system), "id": f"cli-{uuid.uuid4()}"}


def _read(file: str) -> str:
    from policy import Unreadable, decode_text

    try:
        return decode_text(sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes())
    except OSError as error:
        raise Failure(f"--file {file}: {error.strerror}", MISUSED) from error
    except Unreadable as error:
        raise Failure(f"--file {file}: {error}", MISUSED) from error


def _object(where: str, text: str) -> dict[str, Any]:
    from policy import Unreadable, read_json

    try:
        value = read_json(text)
    except Unreadable as error:
        raise Failure(f"{where}: {error}", MISUSED) from error
    if not isinstance(value, dict):
        raise Failure(f"{where}: must be a JSON object, not {text.strip()[:40]}", MISUSED)
    return value


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    """Raises Failure, also for a name with two values: as in a request, none of them counts."""
    properties: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise Failure(f"--property {text}: write NAME=VALUE", MISUSED)
        if properties.setdefault(name, value) != value:
            raise Failure(f"--property {text}: it is {properties[name]!r} already; leave one of them out", MISUSED)
    return properties


def claims_of(trust: str | None) -> frozenset[str]:
    """What requests may claim: everything by default; nothing for an empty text. Raises Failure."""
    from policy import CLAIMS

    if trust is None:
        return CLAIMS
    claims = frozenset(filter(None, map(str.strip, trust.split(","))))
    if unknown := claims - CLAIMS:
        raise Failure(f"--trust: {', '.join(sorted(unknown))}: not among {', '.join(sorted(CLAIMS))}", MISUSED)
    return claims


def snapshot_of(path: Path) -> "Snapshot":
    """The documents at `path`, compiled; refused ones are printed. Raises FilesRefused."""
    from policy import compile_documents, read_documents

    snapshot = compile_documents(document.value for document in read_documents(path))
    for rejected in snapshot.rejected:
        echo_err(f"refused: {rejected.key}: {'; '.join(rejected.errors)}")
    return snapshot


def live_snapshot(kafka: KafkaOptions) -> "tuple[Snapshot, Offsets]":
    """Policies and facts as the job would see them if it started now, with the history topic. With their offsets."""
    from streaming.snapshots.policies import policies_in_force

    settings = kafka.settings()
    connect(settings, *settings.topics.documents)
    with policies_in_force(settings) as policies:
        return policies.snapshot.with_facts(policies.overlay), policies.all_offsets()
