"""A report in which every name, text and number that comes from records means harm."""

import msgspec

from policy import DocumentStore
from streaming.report.gather import Report
from streaming.report.incidents import sum_up_changes
from streaming.settings import MIB
from tests.report.world import BEGIN, DECISIONS, REQUESTS, SPAN, World, decision_record, query, record, role

HACKED = "hacked"
LONG = "x" * 10_000


def hostile_texts(address: str) -> tuple[str, ...]:
    """Texts that try to run a script, to load something from `address`, to break out, to mislead, to fill the page."""
    return (
        f'<script>document.title="{HACKED}"</script>',
        f'"><img src="http://{address}/img" onerror="document.title=\'{HACKED}\'">',
        f'</svg></style></title><script src="http://{address}/script"></script>',
        f"' onmouseover='document.title=\"{HACKED}\"' style='background:url(http://{address}/style)",
        f"<iframe src=http://{address}/frame></iframe><meta http-equiv=refresh content=0;url=http://{address}/go>",
        "user:\u202egnp.\u2066exe\u200b\x00\x1b[2J",
        "$\\frac{1}{0}$ {{ 7 * 7 }} {% raw %} &lt;b&gt; ]]> <!-- -->",
        LONG,
    )


def hostile_report(address: str = "127.0.0.1:9") -> Report:
    """Each text as subject, resource, system, reason, topic, document, statement, alert, evidence and dead letter."""
    texts = hostile_texts(address)
    roles = (role(text, ("allow", "kafka:Get*", "kafka:topic:prod/main/orders")) for text in texts)
    world = World(
        *(one for one in roles if DocumentStore().put(one) is None)
    )  # a name with unseen characters is refused
    for text in texts:
        _deny(world, text)
        fields = {"kind": text, "severity": text, "time": text, "subject": text, "message": text}
        world.alert(**fields, evidence=[text, {text: text}])
        world.alert(severity="critical", subject={text: text}, message=text)
        world.dead_letter(text, topic=text)
    changes = [
        record(text, number, BEGIN, value, key)
        for number, text in enumerate(texts)
        for key, value in ((f"Role/{text}", role(text)), (f"Role/{text}", b"{"), (text, b"[]"))
    ]
    followed = sum_up_changes(changes, dict.fromkeys(texts, "lenses6"), MIB, SPAN)
    return msgspec.structs.replace(world.report(), job=texts[0], changes=followed)


def _deny(world: World, text: str) -> None:
    request = query(text, "Get", "x") | {"resource": {"type": text, "id": text}, "system": text}
    offset = len(world.requests)
    world.requests.append(record(REQUESTS, offset, BEGIN, request))
    answer = {"decision": False, "context": {"outcome": "deny", "reasons": [{"code": text, "message": text}]}}
    world.decisions.append(record(DECISIONS, offset, BEGIN, decision_record(request, answer, offset)))
