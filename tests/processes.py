"""What runs on this machine."""

import subprocess


def processes_naming(text: str) -> list[str]:
    """Return the processes whose command line contains a text, such as the folder they work in."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listed.splitlines() if text in line]
