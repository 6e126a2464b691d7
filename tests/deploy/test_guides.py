"""What the guides say of deploying and upgrading can be done, in the order in which they say it."""

import configparser
import itertools
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, ROOT, parse_command, read_yaml
from tests.deploy.kustomize import build, key
from tests.docs.pages import PAGES, SHELL, Block, blocks, pages

COMPOSE = ROOT / "docker-compose.yml"
OURS = re.compile(r"\b(?:[\w.-]+/)*lockkeeper:([\w.-]*[\w-])")
IMMUTABLE = ("PersistentVolumeClaim",)  # kinds of which hardly any field can be changed


def _applied(block: Block) -> list[Path]:
    return [ROOT / folder for folder in re.findall(r"kubectl apply -k (\S+)", block.body)]


def _claims(folder: Path) -> dict[tuple[str, str], Any]:
    return {key(resource): resource["spec"] for resource in build(folder) if resource["kind"] in IMMUTABLE}


def _exclude_each_other(one: Path, other: Path) -> bool:
    """Whether the second cannot be applied over the first: the API server refuses the changed fields."""
    here, there = _claims(one), _claims(other)
    return any(here[name] != there[name] for name in here.keys() & there.keys())


def test_the_overlays_of_kubernetes_exclude_each_other() -> None:
    """So the test below has something to find."""
    assert _exclude_each_other(DEPLOY / "kubernetes" / "base", DEPLOY / "kubernetes" / "production")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_page_applies_one_overlay_over_another(page: Path) -> None:
    text, lines = page.read_text(encoding="utf-8"), page.read_text(encoding="utf-8").splitlines()
    applied = [(block, folder) for block in blocks(page) for folder in _applied(block)]
    assert all(f"kubectl apply -k {folder.relative_to(ROOT)}" in text for _, folder in applied)
    for (first, one), (second, other) in itertools.pairwise(applied):
        if _exclude_each_other(one, other):
            between = " ".join(lines[first.line - 1 + first.body.count("\n") + 2 : second.line - 1])
            assert "instead" in between, f"{second}: {other.name} cannot be applied over {one.name}"


def test_an_upgrade_checks_the_topics_before_the_new_version_starts() -> None:
    """With the new version, while the old one runs: what is wrong is then no interruption."""
    [commands] = [b.commands for b in blocks(PAGES / "upgrading.md") if b.language in SHELL and "compose" in b.body]
    words = [shlex.split(command.text.partition(" #")[0]) for command in commands]
    starts = next(i for i, command in enumerate(words) if command[:3] == ["docker", "compose", "up"])
    builds = next(i for i, command in enumerate(words) if command[:3] == ["docker", "compose", "build"])
    services = read_yaml(COMPOSE)["services"]
    asked = {}
    for i, command in enumerate(words):
        if command[:4] == ["docker", "compose", "run", "--rm"]:
            assert services[command[4]]["image"] == "lockkeeper:local"
            asked[parse_command(command[5:])] = i
    assert builds < asked["topics check"] < asked["topics create"] < starts
    assert "--build" not in words[starts]


def test_images_of_ours_have_the_tag_that_the_build_gives_them_and_no_version_that_does_not_exist() -> None:
    """A version is that of a tag of the repository, of which the files of a release cannot know."""
    files = [*DEPLOY.rglob("*"), COMPOSE, *pages(), ROOT / "README.md"]
    found = {
        (str(file.relative_to(ROOT)), match[0], match[1])
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
        for match in OURS.finditer(file.read_text(encoding="utf-8"))
        if "chown" not in match.string[max(0, match.start() - 20) : match.start()]
    }
    assert {tag for _, _, tag in found} == {"local"}, sorted(found)
    assert {"deploy/Dockerfile", "docs/pages/guides/deploy.md", "docker-compose.yml"} <= {file for file, _, _ in found}


def test_the_guides_build_gives_the_image_its_version_and_the_tag_of_the_manifests() -> None:
    builds = [
        c.text for b in blocks(PAGES / "guides/deploy.md") for c in b.commands if c.text.startswith("docker build ")
    ]
    [command] = builds
    words = shlex.split(command)
    assert words[words.index("--tag") + 1] == "lockkeeper:local"
    assert words[words.index("--file") + 1] == "deploy/Dockerfile"
    assert "--build-arg" not in words  # git names the version
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert 'ARG VERSION=""' in dockerfile
    assert "/context/.git" in dockerfile


def test_the_unit_of_systemd_can_be_enabled_and_writes_its_checkpoint_into_a_folder_of_its_user() -> None:
    """Without a working directory the checkpoint of the default settings is `/checkpoint`, and root's."""
    page = (PAGES / "guides/deploy.md").read_text(encoding="utf-8")
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(textwrap.dedent(page.split("For systemd:\n\n")[1].split("\n\nWith `KillMode")[0]))
    service = unit["Service"]
    assert service["User"] != "root"
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert parse_command(shlex.split(service["ExecStart"])[1:])
    assert unit["Install"]["WantedBy"] == "multi-user.target"
