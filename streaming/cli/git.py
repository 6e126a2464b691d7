"""What git says of a folder of documents."""

import os
import subprocess
from pathlib import Path

SECONDS = 60  # an archive of a large repository takes some


def git(folder: Path | None, *arguments: str) -> bytes | None:
    """What git prints; None where it fails, takes longer, or is not there. `folder`: None for the current one."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            # Else `git status` writes the index again, and an editor that does so too finds it locked: git(1).
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
