"""What operators write: settings, folders of documents, case files, and what importers are given."""

import contextlib
import functools
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import yaml

from policy import compile_documents
from policy.core.plain_data import decode_text, read_yaml
from policy.importers import ImportInput, sources, translate
from policy.store.repository import SUFFIXES, FilesRefused, read_documents
from policy.testing.casefile import CaseFileError, load_cases
from policy.testing.caseyaml import read_case_yaml
from policy.testing.run import run_cases
from streaming.settings import SettingsError, load_settings, variable, variables
from streaming.settings.former import REMOVED, REPLACED
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import FAULTY, mutate_bytes, mutate_data, to_json
from tests.fuzz.samples import CASES, ROOT, all_documents, words
from tests.fuzz.targets.judged import ANY_SECRET, SECRET

Data = dict[str, Any]
SAMPLE: Data = {
    "job_name": "lockkeeper",
    "bootstrap_servers": "broker:9092",
    "topics": {"requests": ["authz.requests.v1"], "decisions": "authz.decisions.v1"},
    "trust": {"authz.requests.v1": ["groups", "roles"]},
    "kafka": {"security.protocol": "SASL_SSL", "sasl.username": "u"},
    "limits": {"record_in": 2000},
    "monitor": {"rules": {"window_seconds": 60}, "enabled": True, "separate": False},
    "schema_registry": {"url": "https://registry:8081", "user": "u"},
    "encoding": "avro-confluent",
    "accepted_topic_ids": ["a"],
    "policy": {"require": ["author"], "require_commit": True},
    "serve": {"record": "all", "record_systems": {"cdap": "none"}},
    "systems": ["cdap", "lenses6"],
    "tracing": {"enabled": True},
}
VARIABLES = sorted({*variables(), *map(variable, (*REMOVED, *REPLACED))})
SECRET_PLACES = (("kafka", "sasl.password"), ("source", "kafka.ssl.key.password"), ("schema_registry", "password"))


class _InFolder:
    """Targets that read files: one folder for all inputs, gone with the target."""

    def __init__(self, seed: str) -> None:
        self._kept = tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self._folder = Path(self._kept.name)

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def _write(self, name: str, data: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(data)
        return path


class SettingsFiles(_InFolder):
    """The settings file and the environment: `SettingsError` or settings, and no secret in either."""

    name, share, records = "settings", 4, 1

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A file with secrets, and some variables."""
        value: Any = {name: SAMPLE[name] for name in dice.sample(sorted(SAMPLE), dice.randint(1, len(SAMPLE)))}
        for place, field in dice.sample(SECRET_PLACES, dice.choice((0, 1, 2))):
            value = {**value, place: {**value.get(place, {}), field: SECRET.format(dice.randrange(16**16))}}
        value = mutate_data(dice, value, FAULTY) if dice.random() < 0.8 else value  # type: ignore[arg-type]
        text = to_json(dice, value)
        if dice.random() < 0.7:
            with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
                text = yaml.safe_dump(value, sort_keys=False).encode("utf-8", "surrogatepass")
        environment = {}
        for name in dice.sample(VARIABLES, dice.choice((0, 0, 1, 3))):
            environment[name] = dice.choice((*FAULTY, "5", "[a, b]", "{a: b}", "{a: *b}", "2024-99-99", "!!set {a}"))
        if dice.randrange(20) == 0:
            environment[dice.choice(("LOCKKEEPER_KAFKA", "LOCKKEEPER_SCHEMA_REGISTRY_PASSWORD"))] = (
                f"{dice.choice(FAULTY)}{SECRET.format(dice.randrange(16**16))}"
            )
        environment = {name: text.encode("utf-8", "replace").decode() for name, text in environment.items()}
        return {"file": text if deep else mutate_bytes(dice, text), "environment": environment}

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        path = self._write("settings.yaml", given["file"])
        try:
            shown = repr(load_settings(path, given["environment"]))
            rejected = False
        except SettingsError as error:
            shown, rejected = str(error), True
        hidden = _values_of(given)
        if leaked := sorted(set(ANY_SECRET.findall(shown.encode("utf-8", "replace"))) & hidden):
            raise Violation(f"secret: {leaked[0].decode()} is shown by {shown[:300]!r}")
        return Execution("not YAML" not in shown and "not UTF-8" not in shown, rejected)


def _values_of(given: Any) -> set[bytes]:
    """The secrets that stand where secrets do, as far as the file can be read; else all of them."""
    texts = {secret for text in given["environment"].values() for secret in ANY_SECRET.findall(text.encode())}
    try:
        value = yaml.safe_load(given["file"].decode())
    except (ValueError, yaml.YAMLError, RecursionError):
        return texts | set(ANY_SECRET.findall(given["file"]))
    if not isinstance(value, dict):
        return texts
    for place, field in SECRET_PLACES:
        held = value.get(place)
        if isinstance(held, dict) and isinstance(held.get(field), str):
            texts |= set(ANY_SECRET.findall(held[field].encode("utf-8", "replace")))
    return texts


class PolicyFiles(_InFolder):
    """Folders of documents, and case files: `FilesRefused` and `CaseFileError` alone."""

    name, share, records = "policy-files", 2, 1

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A file with some documents, or a case of a case file."""
        cases = dice.random() < 0.5
        value: Any = _one_case(dice) if cases else [dice.choice(all_documents()) for _ in range(dice.choice((1, 2, 3)))]
        if dice.random() < 0.9:
            value = mutate_data(dice, value, words("cdap"))
        suffix = ".yaml" if cases else dice.choice(sorted(SUFFIXES))
        data = _dumped(dice, value, suffix)
        return {"cases": cases, "suffix": suffix, "file": data if deep else mutate_bytes(dice, data)}

    def run(self, given: Any) -> Execution:
        """Raises what is not documented."""
        path = self._write(f"input{given['suffix']}", given["file"])
        try:
            if given["cases"]:
                run_cases(load_cases(path))
            else:
                compile_documents(one.value for one in read_documents(path))
        except (FilesRefused, CaseFileError) as error:
            return Execution("cannot be read" not in str(error) and "not YAML" not in str(error), True)
        finally:
            path.unlink()
        return Execution()


def _one_case(dice: Random) -> Any:
    cases = _case_file(dice.choice(CASES))
    return {"system": cases["system"], "cases": [dice.choice(cases["cases"])]}


@functools.cache
def _case_file(path: Path) -> Any:
    return read_case_yaml(path.read_text())


def _dumped(dice: Random, value: Any, suffix: str) -> bytes:
    try:
        if suffix in (".json", ".jsonl", ".ndjson") or dice.random() < 0.2:
            joined = isinstance(value, list) and suffix != ".json"
            return b"\n".join(to_json(dice, one) for one in value) if joined else to_json(dice, value)
        if isinstance(value, list):
            return yaml.safe_dump_all(value, sort_keys=False).encode()
        return yaml.safe_dump(value, sort_keys=False).encode()
    except (yaml.YAMLError, ValueError, RecursionError):
        return to_json(dice, value)


class Importers:
    """What importers are given: `FilesRefused`, or documents that lockkeeper takes."""

    name, share, records = "importers", 3, 1

    def __init__(self, seed: str) -> None:
        folder = ROOT / "tests/policy/importers/data"
        self._files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """One or two exports, of the right platform or of another."""
        source, files = dice.choice(sorted(sources())), []
        fitting = [name for name in sorted(self._files) if _fits(source, name)]
        for _ in range(dice.choice((1, 1, 2))):
            name = dice.choice(fitting if dice.random() < 0.9 and fitting else sorted(self._files))
            data = self._files[name]
            if deep and not name.endswith(".csv"):
                values = [mutate_data(dice, value, words("cdap")) for value in _values(data)]
                data = _dumped(dice, values if len(values) > 1 else values[0], Path(name).suffix)
            elif deep:
                lines = data.splitlines(keepends=True)
                data = b"".join([lines[0], *(mutate_bytes(dice, line) for line in lines[1:])])
            else:
                data = mutate_bytes(dice, data)
            files.append([name, data])
        return {"source": source, "files": files}

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        files = [ImportInput(name, data) for name, data in given["files"]]
        try:
            found = translate(sources()[given["source"]], files)
        except FilesRefused:
            return Execution(False, True)
        if rejected := compile_documents(found.documents).rejected:
            raise Violation(f"refused: {rejected[0]}"[:500])
        if found.fatal and found.documents:
            raise Violation("importers: documents of a run that is not safe")
        return Execution(True, bool(found.errors))


@functools.cache
def _values(data: bytes) -> list[Any]:
    return [part.value for part in read_yaml(decode_text(data))]


def _fits(source: str, name: str) -> bool:
    special = {"cdap": ("csv",), "streamsets": ("csv",), "ververica": ("values",)}
    return any(part in name for part in special.get(source, (source,)))
