"""Which change a text names: what a publisher chose as an id never stands for another change."""

import msgspec
import pytest

from streaming.records.change import ChangeWidens, DocumentChange, PolicyChange, PolicyState
from streaming.snapshots.logged import ChangeHistory, ChangeRecords, NoSuchChange

TOPIC = "authz.changes.v1"
JOB_ID = "authz.policies.lenses6.v1-5"
UUID = "3f2a91c07b1e4f6d8a5b9c0d1e2f3a4b"
STATE = PolicyState({"authz.policies.lenses6.v1": {"0": 5}})


def change(id_: str, system: str = "lenses6", at: str = "2026-11-21T10:00:00Z", author: str = "dana") -> PolicyChange:
    """A change of one document."""
    documents = (DocumentChange(f"{system}/Role/r", "changed", 5),)
    return PolicyChange(
        id=id_, system=system, time=at, author=author, before=STATE, after=STATE, documents=documents, documents_count=1
    )


def history(*records: PolicyChange | ChangeWidens) -> ChangeHistory:
    """The records on the changes topic, as they are read back."""
    read = ChangeRecords(TOPIC, ["authz.policies.lenses6.v1"])
    for offset, record in enumerate(records):
        read.add(offset, record)
    return read.history(is_cut=False)


def authors(read: ChangeHistory, text: str) -> str:
    """The author of the change that a text names."""
    return read.find(text).first.author


def test_the_beginning_of_an_id_that_another_publisher_took_as_a_whole_names_neither() -> None:
    read = history(change(UUID), change(UUID[:12], author="eve"))
    with pytest.raises(NoSuchChange) as refused:
        read.find(UUID[:12])
    for name in (f"{TOPIC}-0", f"{TOPIC}-1", "dana", "eve"):
        assert name in str(refused.value)
    assert [authors(read, f"{TOPIC}-{offset}") for offset in (0, 1)] == ["dana", "eve"]
    assert authors(read, UUID) == "dana"


def test_an_id_that_was_taken_again_names_neither() -> None:
    read = history(change(UUID), change(UUID, at="2026-11-22T10:00:00Z", author="eve"))
    assert len(read.changes) == 2
    with pytest.raises(NoSuchChange, match=f"{TOPIC}-0.*{TOPIC}-1"):
        read.find(UUID)
    assert authors(read, f"{TOPIC}-1") == "eve"


def test_an_id_that_goes_on_after_another_one_does_not_hide_it() -> None:
    read = history(change(UUID), change(f"{UUID}0", author="eve"))
    with pytest.raises(NoSuchChange, match=f"{TOPIC}-0.*{TOPIC}-1"):
        read.find(UUID)


def test_ids_of_the_job_win_over_those_that_begin_like_them() -> None:
    read = history(change(JOB_ID), change(f"{JOB_ID}1"), change(f"{JOB_ID}-mine", author="eve"))
    assert read.find(JOB_ID).id == JOB_ID
    assert read.find(f"{JOB_ID}1").id == f"{JOB_ID}1"


@pytest.mark.parametrize("taken", ["HEAD", "HEAD~1", f"{TOPIC}-0", f"{TOPIC}-1"])
def test_no_id_passes_for_a_place_on_the_topic(taken: str) -> None:
    read = history(change(UUID), change("b" * 32), change(taken, author="eve"))
    expected = {"HEAD": 2, "HEAD~1": 1, f"{TOPIC}-0": 0, f"{TOPIC}-1": 1}[taken]
    assert read.find(taken) is read.changes[expected]


def test_parts_of_several_systems_are_one_change_unless_they_are_days_apart() -> None:
    near = history(change(UUID), change(UUID, "cdap", "2026-11-21T10:00:01Z"))
    assert [len(one.parts) for one in near.changes] == [2]
    far = history(change(UUID), change(UUID, "cdap", "2026-11-22T10:00:00Z", "eve"))
    assert [len(one.parts) for one in far.changes] == [1, 1]
    assert [one.first.author for one in history(change(UUID), change(UUID, "cdap", author="eve")).changes] == [
        "dana",
        "eve",
    ], "one publisher says the same of itself in all of them"


def test_what_a_change_widens_is_not_that_of_another_with_its_id() -> None:
    widens = ChangeWidens(
        id=UUID,
        system="lenses6",
        time="2026-11-21T10:00:00Z",
        changes=(UUID,),
        widens=(),
        widens_count=0,
        complete=True,
    )
    read = history(change(UUID), widens, change(UUID, author="eve"))
    assert [len(one.widens) for one in read.changes] == [1, 0]
    later = history(change(UUID), change(UUID, author="eve"), widens)
    assert [len(one.widens) for one in later.changes] == [0, 1]


def test_the_shortest_beginning_that_names_one_change_is_shown() -> None:
    read = history(
        change(UUID), change(f"{UUID[:14]}zz"), change("c" * 32), change(JOB_ID), change("dd"), change("cccc")
    )
    assert [read.short(one) for one in read.changes] == [
        UUID[:15],
        f"{UUID[:14]}z",
        "c" * 12,
        JOB_ID,
        "dd",
        f"{TOPIC}-5",
    ], "an id that is the beginning of another names none of them"
    for one in read.changes:
        assert read.find(read.short(one)) is one


def test_the_beginning_of_several_versions_names_none() -> None:
    def led_to(version: str) -> PolicyChange:
        after = msgspec.structs.replace(STATE, policy_version=f"sha256:{version}")
        return msgspec.structs.replace(change(UUID), after=after)

    older, newer, again = led_to("ab1"), led_to("ab2"), led_to("cd1")
    read = history(older, newer, again, again)
    assert read.at_version("sha256:ab1") == older
    assert read.at_version("sha256:cd") == again
    assert read.at_version("sha256:ef") is None
    for text in ("sha256:ab", "sha256:"):
        with pytest.raises(NoSuchChange, match=r"sha256:ab1.*sha256:ab2"):
            read.at_version(text)
