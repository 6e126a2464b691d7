"""The program of the process that parses large texts; see `parser_process`, which runs its source.

It imports cedarpy and the standard library alone: a start takes 0.1 s, with `policy` it would be four times that. It
reads one JSON object, ``{"path": sys.path, "function": name, "arguments": […]}``, and writes one: ``{"result": …}``, or
``{"error": text}`` where the library refuses.
"""

import contextlib
import json
import resource
import signal
import sys
import threading
from typing import Any

STACK = 2 << 20  # bytes: a quarter of a thread's, so that what is parsed here is parsed anywhere
ACTIONS = 8 << 20  # bytes of JSON with all groups of each action: a chain of 500 has them, and takes 1.3 s
SCHEMA_MEMORY = 256 << 20  # bytes: each process that uses a schema parses it again, in a process that must not die
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
MEMORY = 2 << 30  # bytes of address space: beyond it the library's allocation fails, and the process ends


def policies_json(cedarpy: Any, texts: list[str]) -> list[list[str]]:
    """Each text in Cedar's JSON form, as ["result", JSON] or ["error", message]."""
    return [answer(cedarpy.policies_to_json_str, text) for text in texts]


def schema_text(cedarpy: Any, schema: str, is_json: bool) -> str:
    """A schema, Cedar text or JSON, as Cedar text."""
    parsed = cedarpy.Schema.from_json_str(schema) if is_json else cedarpy.Schema.from_str(schema)
    if len(str(cedarpy.Entities.from_json_str("[]", parsed))) > ACTIONS:
        raise ValueError("its actions are in too many groups: use fewer levels of groups")
    if (used := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT) > SCHEMA_MEMORY:
        raise ValueError(f"it takes {used >> 20} MiB: use fewer levels of groups and types")
    return str(parsed)


def entities_fault(cedarpy: Any, entities: str, schema: str) -> str:
    """Why entities do not conform to a schema; "": they do."""
    parsed = cedarpy.Schema.from_str(schema)
    try:
        cedarpy.Entities.from_json_str(entities, parsed)
    except ValueError as error:
        return whole_message(cedarpy, entities, parsed, error)
    return ""


def whole_message(cedarpy: Any, entities: str, schema: Any, error: ValueError) -> str:
    """A request gives the whole message, of which the error has only the beginning."""
    entity = {"type": "A", "id": "a"}
    request = {"principal": entity, "action": {"type": "Action", "id": "a"}, "resource": entity}
    errors = cedarpy.is_authorized(request, "", entities, schema).diagnostics.errors
    return str(errors[0] if errors else error).removeprefix(f"failed to parse entities from:\n{entities}: ")


def violations(cedarpy: Any, policies: str, schema: str) -> list[list[str]]:
    """Id and message of each error of policies under a schema."""
    return [[error.policy_id, error.error] for error in cedarpy.validate_policies(policies, schema).errors]


FUNCTIONS = {function.__name__: function for function in (policies_json, schema_text, violations, entities_fault)}


def answer(function: Any, *arguments: Any) -> list[Any]:
    """What a function returns, or what it raises; a panic of the library is no Exception."""
    try:
        return ["result", function(*arguments)]
    except BaseException as error:
        return ["error", str(error)]


def run(job: dict[str, Any]) -> None:
    """Answer on standard output."""
    sys.path[:] = job["path"]
    import cedarpy  # not before the path is that of the parent

    kind, value = answer(FUNCTIONS[job["function"]], cedarpy, *job["arguments"])
    json.dump({kind: value}, sys.stdout)


def main() -> None:
    """Run one job within bounds of memory, processor time and stack; each of them ends the process."""
    job = json.load(sys.stdin)
    with contextlib.suppress(ValueError, OSError):  # macOS has no bound of the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # By the processor's time: on a busy machine a good document must not be refused.
    signal.setitimer(signal.ITIMER_PROF, job["seconds"])
    threading.stack_size(STACK)
    thread = threading.Thread(target=run, args=(job,))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
