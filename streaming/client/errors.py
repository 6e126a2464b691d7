"""What the client raises. `AccessDenied` covers everything that is no allow."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streaming.client.decision import Decision


class AccessDenied(Exception):
    """The answer was not allow; `decision` says why."""

    def __init__(self, decision: "Decision") -> None:
        super().__init__(str(decision))
        self.decision = decision


class NotDecided(AccessDenied):
    """There was no answer, or the answer was `error`; `decision` says why."""


class ClientError(Exception):
    """The client cannot work as it was set up; the message says what to change. It never holds a secret."""


class NotReported(Exception):
    """An audit event was not published, or it is not known whether it was; the message says why."""


class Unreadable(ValueError):
    """A record is not what its topic should hold; the message says which record and why."""
