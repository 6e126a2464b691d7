"""Results of case files as JUnit XML, the form that build servers show."""

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from policy.testing.run import Result

NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(suites: Mapping[str, Sequence[Result]]) -> str:
    """One suite for each case file, one test for each expectation."""
    root = ElementTree.Element("testsuites")
    for name, results in suites.items():
        failed = sum(not result.passed for result in results)
        counts = {"tests": str(len(results)), "failures": str(failed), "errors": "0"}
        suite = ElementTree.SubElement(root, "testsuite", {"name": _plain(name), **counts})
        for result in results:
            _add(suite, name, result)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, name: str, result: Result) -> None:
    title = f"{result.case}, stage {result.stage + 1}: {result.subject} is {' '.join(result.expected)}"
    test = ElementTree.SubElement(suite, "testcase", {"classname": _plain(name), "name": _plain(title)})
    if not result.passed:
        ElementTree.SubElement(test, "failure", {"message": _plain(result.why)})


def _plain(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return NOT_XML.sub("\ufffd", text)
