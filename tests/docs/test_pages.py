"""What the documentation shows is so: its files load, its commands end and print as shown. No broker is needed here."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from docs import generate
from policy import compile_documents
from policy.analysis import read_may_widen
from streaming.console.viewers import File as ViewersFile
from streaming.serve.callers import File as CallersFile
from streaming.serve.ext_authz import PREFIX
from streaming.serve.ext_authz import File as RoutesFile
from streaming.settings import Settings, check_settings
from tests.docs.pages import PAGES, ROOT, SHELL, Block, Command, blocks, fits, pages
from tests.docs.shell import ELSEWHERE, JOB, elsewhere, environment_of, folder_for, needs_broker, run_or_call, save

EVERY = [block for page in pages() for block in blocks(page)]
KNOWN = SHELL | {"yaml", "json", "python", "csv", "text"}
COMMANDS = [(block, command) for block in EVERY for command in block.commands]


def _of(language: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in EVERY if block.language == language]


def _name(page: Path) -> str:
    return str(page.relative_to(PAGES))


def test_every_block_says_what_it_is() -> None:
    assert {block.language for block in EVERY} <= KNOWN, "add how the language is tested"


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    folder, environment = folder_for(tmp_path / "work"), environment_of()
    for block in blocks(page):
        save(block, folder)
        for command in block.commands:
            if not elsewhere(command) and not needs_broker(block):
                run_or_call(block, command, folder, environment)


@pytest.mark.parametrize("block", _of("yaml"))
def test_yaml_is_documents_that_compile_cases_or_settings(block: Block) -> None:
    loaded = list(yaml.safe_load_all(block.body))
    if isinstance(loaded[0], list):
        assert read_may_widen(block.body)
    elif all("kind" in part for part in loaded):
        assert [(refused.key, refused.errors) for refused in compile_documents(loaded).rejected] == []
    elif "cases" in loaded[0]:
        assert block.title, "cases are run by a command of the page: say what the file is called"
    elif "callers" in loaded[0]:
        msgspec.convert(loaded[0], CallersFile)
    elif "viewers" in loaded[0]:
        msgspec.convert(loaded[0], ViewersFile)
    elif "routes" in loaded[0]:
        msgspec.convert(loaded[0], RoutesFile)
    elif block.title == "envoy.yaml (a part)":
        assert loaded[0]["http_filters"][-1]["typed_config"]["http_service"]["path_prefix"] == PREFIX
    else:
        assert isinstance(check_settings(loaded[0], str(block)), Settings)


@pytest.mark.parametrize("block", _of("json"))
def test_json_is_json(block: Block) -> None:
    assert [json.loads(line) for line in block.body.splitlines()]


@pytest.mark.parametrize("block", _of("text"))
def test_text_is_a_file_that_a_command_of_its_page_reads(block: Block) -> None:
    assert block.title, "say what the file is called"
    folder = f"{Path(block.title).parent}/"
    assert any(folder in command.text for other in blocks(block.page) for command in other.commands)


@pytest.mark.parametrize("block", _of("python"))
def test_python_compiles_and_without_a_broker_runs(block: Block) -> None:
    compile(block.body, str(block), "exec")
    if not block.title:  # files are run by commands of their page
        subprocess.run([sys.executable, "-c", block.body], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("system", generate.NAMES)
def test_each_system_has_a_page_with_documents_and_decisions(system: str) -> None:
    examples = [block for block in blocks(PAGES / f"guides/policies/{system}.md") if block.language == "yaml"]
    documents = [part for block in examples for part in yaml.safe_load_all(block.body) if "kind" in part]
    assert {document["system"] for document in documents} == {system}
    cases = [yaml.safe_load(block.body) for block in examples if block.title == "cases.yaml"]
    assert [case["system"] for case in cases] == [system]


def test_what_is_not_run_is_there_all_the_same() -> None:
    for block, command in COMMANDS:
        if elsewhere(command):
            assert _missing(command) == [], f"{block}: {command.text}"


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_a_row_of_a_table_is_one_line_with_a_cell_for_each_column(page: Path) -> None:
    lines = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8")).splitlines()
    columns = 0
    for line in lines:
        if not line.startswith("|"):
            columns = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) - 1
        assert line.endswith("|"), line
        assert cells == (columns or cells), line
        columns = cells


def test_every_extra_of_the_distribution_is_on_the_page_of_the_installation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (PAGES / "reference" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"lockkeeper-authz\[(\w+)\]", page)) == set(project["optional-dependencies"])


def test_no_reason_is_left_over() -> None:
    unused = [pattern for pattern in ELSEWHERE if not any(re.match(pattern, command.text) for _, command in COMMANDS)]
    assert unused == [], "delete them from ELSEWHERE"


def test_the_job_is_started_once_and_alone() -> None:
    starts = [block for block, command in COMMANDS if command.text.startswith(JOB)]
    assert [_name(block.page) for block in starts] == ["tutorial.md"]
    assert len(starts[0].commands) == 1


def test_pages_that_messages_of_the_code_name_are_there() -> None:
    named = {
        page
        for package in ("policy", "streaming")
        for file in (ROOT / package).rglob("*.py")
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text(encoding="utf-8"))
    }
    assert named
    assert [page for page in named if not (ROOT / page).exists()] == []


def test_an_output_fits_only_what_it_shows() -> None:
    assert fits("2 documents: … errors", "2 documents: 0 errors\n")
    assert fits("…\nend", "one\ntwo\nend")
    assert not fits("2 documents", "12 documents")
    assert not fits("a.c", "abc")


def _missing(command: Command) -> list[str]:
    """What a command names of this project that is not there: files, folders, targets, services."""
    words = shlex.split(command.text)
    named = [word for word in words[1:] if word.startswith("deploy/") and not (ROOT / word).exists()]
    if words[0] == "make":
        named += [word for word in words[1:] if not re.search(rf"^{word}:", _read("Makefile"), re.MULTILINE)]
    if words[:3] == ["docker", "compose", "logs"]:
        services = yaml.safe_load(_read("docker-compose.yml"))["services"]
        named += [word for word in words[3:] if not word.startswith("-") and word not in services]
    if words[0] == "kubectl" and "-k" not in words:
        # The chart alone has a monitor of its own.
        folders = ROOT / "deploy/kubernetes/base", ROOT / "deploy/helm/lockkeeper/templates"
        manifests = "".join(file.read_text(encoding="utf-8") for folder in folders for file in folder.glob("*.yaml"))
        labels = [f"{key}: {value}" for word in words for key, value in _labels(word)]
        names = [word for word in words if "lockkeeper-" in word and not _labels(word)]
        named += [name for name in (*names, *labels) if name not in manifests]
    elif words[0] == "kubectl":
        folder = words[words.index("-k") + 1]
        named += [] if (ROOT / folder / "kustomization.yaml").exists() else [folder]
    return named


def _labels(selector: str) -> list[tuple[str, str]]:
    """The labels of a selector of kubectl, `KEY=VALUE` and `KEY in (VALUE,VALUE)`."""
    equal: list[tuple[str, str]] = re.findall(r"([\w./-]+)=([\w-]+)", selector)
    sets = re.findall(r"([\w./-]+) in \(([^)]*)\)", selector)
    return [*equal, *((key, value) for key, values in sets for value in values.split(","))]


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
