"""Dead letters: secrets are masked, what is JSON stays the same JSON but for them, and each is within the limit."""

import json
from random import Random
from typing import Any

from streaming.records.dead_letter import MASK, Rejection, dead_letter, mask_secrets
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import LARGE, LARGEST, mutate_bytes, mutate_data, to_json
from tests.fuzz.samples import all_documents, all_requests, words
from tests.fuzz.targets.judged import LIMITS, NAMES, SECRET, check_dead_letter, draw_headers, encoded, with_secret

HIDDEN = ("pass%77ord", "client-secret", "x-amz-security-token", "AccessKey", "cookie", "private_key", "sessionId")
FORMS = (
    b"https://user:%s@host/path",
    b"Authorization: Bearer %s",
    b"password=%s",
    b"password: %s",
    b"<password>%s</password>",
    b"\x00\x00\x00\x00\x01\x10password\x2e%s",
)


class DeadLetters:
    """See the module."""

    name, share, records = "dead-letters", 140, 1

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A value with secrets in fields, or in text of other forms."""
        value: Any = dice.choice((all_requests(), all_documents())[dice.randrange(2)])
        for _ in range(dice.choice((0, 1, 2))):
            value = with_secret(dice, value)
        if dice.random() < 0.3:
            value = {dice.choice((*NAMES, *HIDDEN)): value}
        value = mutate_data(dice, value, words("lenses6")) if dice.random() < 0.5 else value
        data = encoded(dice, "request", value, deep)
        if dice.random() < 0.2:
            form = dice.choice(FORMS) % SECRET.format(dice.randrange(16**16)).encode()
            data = dice.choice(
                (form, data + b"\n" + form, form + data, to_json(dice, {"text": form.decode("latin-1")}))
            )
        if dice.randrange(LARGE) == 0:
            data *= LARGEST // max(len(data), 1) + 1
        key = dice.choice((None, b"k", mutate_bytes(dice, data[:100])))
        limits = dice.randrange(len(LIMITS))
        return {"value": data, "key": key, "headers": draw_headers(dice), "limits": limits}

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        key, value, headers, limits = given["key"], given["value"], given["headers"], LIMITS[given["limits"]]
        listed = None if headers is None else [{"key": name, "value": text} for name, text in headers]
        refusal = Rejection("requests", 0, 17, ValueError("refused"))
        check_dead_letter(key, value, headers, dead_letter(refusal, key, value, listed, limits), limits, 17)
        masked = mask_secrets(value)
        if mask_secrets(masked) != masked:
            raise Violation("masking: what is masked would be masked otherwise")
        return Execution(_stays_json(value, masked), MASK in masked)


def _stays_json(value: bytes, masked: bytes) -> bool:
    """Whether it is JSON; raises Violation when it is no more, or has other fields outside of what is masked."""
    try:
        before = json.loads(value.decode(), object_pairs_hook=list)
        json.dumps(before, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    try:
        after = json.loads(masked, object_pairs_hook=list)
    except ValueError as error:
        raise Violation(f"masking: JSON is no JSON any more: {error}") from error
    if not _alike(before, after):
        raise Violation("masking: more than secrets has changed")
    return True


def _alike(before: Any, after: Any) -> bool:
    """Whether both are the same but for texts with a mask."""
    todo = [(before, after)]
    while todo:
        left, right = todo.pop()
        if isinstance(right, str) and MASK.decode() in right:
            continue
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            if len(left) != len(right):
                return False
            todo += zip(left, right, strict=True)
        elif left != right and not (left != left and right != right):
            return False
    return True
