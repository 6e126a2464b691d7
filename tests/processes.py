"""What runs on this machine, by `ps`."""

import subprocess


def processes_naming(text: str) -> list[str]:
    """Return the processes whose command line contains a text, such as the folder they work in."""
    return [line for line in _ps("pid=,args=") if text in line]


def descendants(pid: int) -> set[int]:
    """Return the processes below one: its children, theirs, and so on."""
    parents = [(int(child), int(parent)) for child, parent in map(str.split, _ps("pid=,ppid="))]
    found, above = set[int](), {pid}
    while above:
        above = {child for child, parent in parents if parent in above} - found
        found |= above
    return found


def below(pid: int) -> list[tuple[int, int, str]]:
    """Return the processes below one, each with its parent and its command line."""
    found = descendants(pid)
    lines = (line.split(None, 2) for line in _ps("pid=,ppid=,args="))
    return [(int(line[0]), int(line[1]), line[2]) for line in lines if int(line[0]) in found and len(line) == 3]


def alive(pids: set[int]) -> set[int]:
    """Return those of the processes that run, without the ended ones that their parent has not yet reaped."""
    states = (line.split() for line in _ps("pid=,stat="))
    return {int(pid) for pid, state in states if not state.startswith("Z")} & pids


def _ps(columns: str) -> list[str]:
    command = ["ps", "-A", "-ww", "-o", columns]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
