"""`python -m tests.fuzz`: hostile inputs for everything that takes what somebody else wrote. Used by `make fuzz`."""

import argparse
import secrets
import sys
from pathlib import Path

import msgspec
import structlog

from tests.fuzz.campaign import Report, draw, fuzz, run
from tests.fuzz.harness import check, decode, encode
from tests.fuzz.targets import TARGETS

FOUND = Path("build/fuzz")


def main() -> int:
    """The exit code: 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="of all targets together")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="the same seed makes the same inputs")
    parser.add_argument("--target", action="append", help="only this one; may be repeated")
    parser.add_argument("--number", type=int, help="only the input with this number: run, and printed")
    parser.add_argument("--case", type=Path, help="only the input in this file")
    options = parser.parse_args()
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent)])
    makes = tuple(make for make in TARGETS if not options.target or make.name in options.target)
    if options.case is not None:
        kept = decode(options.case.read_text())
        target = next(make for make in TARGETS if make.name == kept["target"])(options.seed)
        print(check(target, kept["input"]))
        return 0
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    if options.number is not None:
        return _one(makes[0](options.seed), options.seed, options.number)
    found = False
    for report in run(makes, options.seed, options.inputs):
        for finding in report.findings:
            _keep(report, finding)
        found |= bool(report.findings)
        print(msgspec.json.encode(report).decode(), flush=True)
    return int(found)


def _one(target: object, seed: str, number: int) -> int:
    given = draw(target, seed, number)  # type: ignore[arg-type]
    print(encode(given))
    return int(bool(fuzz(target, seed, range(number, number + 1)).findings))  # type: ignore[arg-type]


def _keep(report: Report, finding: dict[str, object]) -> None:
    """Write the input of a finding to a file, and name that in its place."""
    if "input" in finding:
        FOUND.mkdir(parents=True, exist_ok=True)
        path = FOUND / f"{report.target}-{report.seed}-{finding['number']}.json"
        path.write_text(f"{finding.pop('input')}\n")
        finding["file"] = str(path)


if __name__ == "__main__":
    sys.exit(main())
