"""Who makes a change, of which commit and why: options of `policy apply | delete | rollback`, else what git says."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.failure import MISUSED, Failure
from streaming.cli.git import git

if TYPE_CHECKING:
    from streaming.kafka.authorship import Authorship
    from streaming.settings import Settings

GIT_SECONDS = 10

AuthorOption = Annotated[
    str | None,
    typer.Option(
        "--author",
        envvar="LOCKKEEPER_AUTHOR",
        help="Who makes the change, as a claim.  [default: the author of the commit, else git's user]",
        show_default=False,
    ),
]
CommitOption = Annotated[
    str | None,
    typer.Option(
        "--commit",
        envvar="LOCKKEEPER_COMMIT",
        help="The commit that it comes from.  [default: HEAD of PATH's repository]",
        show_default=False,
    ),
]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason",
        envvar="LOCKKEEPER_REASON",
        help="Why it is made.  [default: the subject of the commit]",
        show_default=False,
    ),
]


def authorship(
    settings: "Settings", author: str | None, commit: str | None, reason: str | None, path: Path | None = None
) -> "Authorship":
    """What a change says of itself, with a new id. `path`: of the documents, for what git says.

    Raises Failure where the settings require what is not known.
    """
    from streaming.kafka.authorship import Authorship

    git_author, git_commit, git_reason = _of_git(path)
    claimed = Authorship(author=author or git_author, commit=commit or git_commit, reason=reason or git_reason)
    for name in settings.policy.require:
        if not getattr(claimed, name):
            raise Failure(
                f"nothing was published: the setting policy.require requires --{name} (or LOCKKEEPER_"
                f"{name.upper()}); git, too, does not say it",
                MISUSED,
            )
    return claimed.with_id()


def _of_git(path: Path | None) -> tuple[str, str, str]:
    """Author, commit and reason by git. Of files that differ from the commit, its author and subject say nothing."""
    user = " ".join(part for part in (_git(None, "config", "user.name"), _email()) if part)
    if path is None:
        return user, "", ""
    folder = path if path.is_dir() else path.parent
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return user, "", ""
    if _git(folder, "status", "--porcelain", "--", str(path.absolute())):
        return user, f"{commit}-dirty", ""
    author, _, subject = _git(folder, "log", "-1", "--format=%an <%ae>%n%s").partition("\n")
    return author, commit, subject


def _email() -> str:
    email = _git(None, "config", "user.email")
    return f"<{email}>" if email else ""


def _git(folder: Path | None, *arguments: str) -> str:
    """What git prints; nothing where there is no git or no repository."""
    output = git(folder, *arguments, seconds=GIT_SECONDS)
    return "" if output is None else output.decode("utf-8", "replace").strip()
