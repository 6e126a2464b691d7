"""Documents and requests for the command line's tests."""

import json
from pathlib import Path
from typing import Any

ROLE = """\
system: lenses6
kind: Role
name: {name}
spec:
  statements:
    - {{effect: allow, action: "kafka:Get*", resource: "kafka:topic:prod/main/{topic}"}}
"""
GROUP = "system: lenses6\nkind: Group\nname: {name}\nspec: {{roles: [{role}], members: ['user:dana']}}\n"
BROKEN = "system: lenses6\nkind: Role\nname: broken\nspec:\n  statements: []\n  enforcment: false\n"


def readers_folder(folder: Path) -> Path:
    """A folder of policies: user:dana may get details of the topic `orders`."""
    folder.mkdir()
    (folder / "role.yaml").write_text(ROLE.format(name="order-readers", topic="orders"))
    (folder / "group.yaml").write_text(GROUP.format(name="readers", role="order-readers"))
    return folder


def request(who: str = "user:dana", topic: str = "orders", **fields: Any) -> dict[str, Any]:
    """A request to get a topic's details."""
    return {
        "id": "r-1",
        "system": "lenses6",
        "subject": {"type": "user", "id": who},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": f"kafka:topic:prod/main/{topic}"},
        **fields,
    }


def lines(*values: Any) -> str:
    """JSON lines; text stands as it is."""
    return "".join(f"{value if isinstance(value, str) else json.dumps(value)}\n" for value in values)
