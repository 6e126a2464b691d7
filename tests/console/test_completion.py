"""What a form completes is what a request of the system takes, in each language."""

import pytest
import yaml

from policy import compile_documents
from streaming.console.completion import MOST, completed_names
from streaming.console.playground import load_examples

SUBJECTS = {
    "lenses6": ["service-account:checkout", "user:dana"],
    "lenses5": ["dana"],
    "ververica": ["dana@example.com"],
    "streamsets": ["miguel", "rita"],
    "kafka-acls": ["User:*", "User:dana"],
}
EXAMPLES = dict(load_examples())


@pytest.mark.parametrize("system", SUBJECTS)
def test_subjects_are_as_requests_write_them(system: str) -> None:
    documents = [{**one, "system": system} for one in yaml.safe_load_all(EXAMPLES[system]["documents"])]
    subjects, _ = completed_names(compile_documents(documents), system)
    assert subjects == SUBJECTS[system]


def test_names_are_bounded_and_of_the_system_alone() -> None:
    spec = {"roles": [], "members": [f"user:{number}" for number in range(3 * MOST)]}
    snapshot = compile_documents([{"system": "lenses6", "kind": "Group", "name": "g", "spec": spec}])
    assert len(completed_names(snapshot, "lenses6")[0]) == MOST
    assert completed_names(snapshot, "cdap") == completed_names(snapshot, "none") == ([], [])
