"""The packages are layers: each imports from those above it alone, and applications from the layers of `policy`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

POLICY = (
    ("policy.core",),
    ("policy.matching",),
    ("policy.systems.kit",),
    ("policy.systems",),
    ("policy.store",),
    ("policy.evaluation",),
    ("policy",),
    ("policy.analysis",),
    ("policy.testing", "policy.importers"),
)
STREAMING = (
    (
        "streaming.alert_kinds",
        "streaming.errors",
        "streaming.topics",
        "streaming.terminal",
        "streaming.unique_yaml",
    ),
    ("streaming.settings",),
    ("streaming.runtime",),
    ("streaming.kafka",),
    ("streaming.records",),
    ("streaming.history",),
    ("streaming.ops",),
    ("streaming.commit",),
    ("streaming.snapshots",),
    ("streaming.enforcer",),
    ("streaming.monitor", "streaming.pdp"),
    (
        "streaming.access_changes",
        "streaming.application",
        "streaming.client",
        "streaming.imported",
        "streaming.serve",
    ),
    ("streaming.broker", "streaming.decision_log", "streaming.replay", "streaming.report", "streaming.verify"),
    ("streaming.console", "streaming.demo"),
    ("streaming.cli",),
)
LAYERS = {package: level for layers in (POLICY, STREAMING) for level, layer in enumerate(layers) for package in layer}


def _modules(package: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


IMPORTER = re.compile(r"policy\.systems\.\w+\.importer\b")


def _layer(name: str) -> str | None:
    """The package of a module that has a place among the layers, the innermost.

    The importer of a system stands with all importers: the system does not import it.
    """
    if IMPORTER.match(name):
        return "policy.importers"
    found = [package for package in LAYERS if name == package or name.startswith(f"{package}.")]
    return max(found, key=len, default=None)


@pytest.mark.parametrize("package", ["policy", "streaming"])
def test_a_package_imports_from_the_layers_above_it(package: str) -> None:
    upwards = []
    for name, tree in _modules(package):
        here = _layer(name)
        assert here is not None or name == package, f"{name} has no place among the layers: give it one"
        for imported in _imported(tree):
            there = _layer(imported)
            if here and there and imported.startswith(f"{package}.") and LAYERS[there] > LAYERS[here]:
                upwards.append(f"{name} imports {imported}")
    assert upwards == []


def test_policy_imports_nothing_of_streaming() -> None:
    imports = [(name, other) for name, tree in _modules("policy") for other in _imported(tree)]
    assert [pair for pair in imports if pair[1].split(".")[0] in {"streaming", "pyspark", "confluent_kafka"}] == []


FACADE = {"policy", "policy.evaluation", "policy.analysis", "policy.testing", "policy.importers"}


def test_streaming_imports_policy_by_its_facade_and_four_subpackages() -> None:
    modules = [
        (name, node.module)
        for name, tree in _modules("streaming")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "policy"
    ]
    assert modules
    assert [(name, module) for name, module in modules if module not in FACADE] == []


def test_the_picture_for_contributors_has_every_package() -> None:
    picture = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```")[1]
    names = set(re.findall(r"\w+(?:/\w+)?", picture))
    packages = {package.partition(".")[2].replace(".", "/") for package in LAYERS}
    assert sorted(packages - names - {""}) == []


def test_the_files_that_contributors_are_sent_to_are_there() -> None:
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:streaming|policy|tests|deploy|docs)/[\w/.-]+)`", text)
    assert len(named) > 10
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []
