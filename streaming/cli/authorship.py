"""Who makes a change, of which commit and why: options of `policy apply | delete | rollback`, else what git says."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.failure import MISUSED, Failure
from streaming.cli.git import git
from streaming.cli.grouped_options import Options

if TYPE_CHECKING:
    from streaming.kafka.authorship import Authorship
    from streaming.settings import Settings


@dataclass(frozen=True)
class AuthorshipOptions(Options):
    """Who makes a change, of which commit and why."""

    author: Annotated[
        str | None,
        typer.Option(
            envvar="LOCKKEEPER_AUTHOR",
            help="Who makes the change, as a claim.  [default: the author of the commit, else git's user]",
            show_default=False,
        ),
    ] = None
    commit: Annotated[
        str | None,
        typer.Option(
            envvar="LOCKKEEPER_COMMIT",
            help="The commit that it comes from.  [default: HEAD of PATH's repository]",
            show_default=False,
        ),
    ] = None
    reason: Annotated[
        str | None,
        typer.Option(
            envvar="LOCKKEEPER_REASON",
            help="Why it is made.  [default: the subject of the commit]",
            show_default=False,
        ),
    ] = None

    def authorship(self, settings: "Settings", path: Path | None = None, reason: str = "") -> "Authorship":
        """What the change says of itself, with a new id. `path`: of the documents, for what git says.

        `reason`: where neither the options nor git says one. Raises Failure where the settings require what is not
        known.
        """
        from streaming.kafka.authorship import Authorship

        author, commit, subject = _of_git(path)
        claimed = Authorship(
            author=self.author or author, commit=self.commit or commit, reason=self.reason or subject or reason
        )
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
    name, email = (_git(None, "config", f"user.{part}") for part in ("name", "email"))
    user = " ".join(filter(None, (name, email and f"<{email}>")))
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


def _git(folder: Path | None, *arguments: str) -> str:
    """What git prints; nothing where there is no git or no repository."""
    output = git(folder, *arguments)
    return "" if output is None else output.decode("utf-8", "replace").strip()
