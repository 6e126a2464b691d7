"""A process that applies one document after another: ``CONFIG FOLDER WHO COUNT``."""

import sys
from pathlib import Path

from streaming.cli import main
from tests.cli.documents import ROLE


def apply_all(config: str, folder: Path, who: str, count: int) -> None:
    """Publish the role of this process and one that all of them write, again and again, as two documents a change."""
    for number in range(count):
        file = folder / f"{who}.yaml"
        topics = (f"{who}-{number}", f"shared-{who}-{number}")
        file.write_text(
            "---\n".join(
                ROLE.format(name=name, topic=topic) for name, topic in zip((who, "shared"), topics, strict=True)
            )
        )
        try:
            main(["policy", "apply", str(file), "--config", config, "--author", who, "--reason", f"change {number}"])
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    apply_all(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
