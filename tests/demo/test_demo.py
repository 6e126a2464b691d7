"""`lockkeeper demo`, played for real: broker, policies, traffic and the job."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.processes import processes_naming
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "streaming.cli", "demo"]


@pytest.mark.long
@pytest.mark.stream
def test_the_demo_ends_with_a_summary_that_holds() -> None:
    """For machines: one JSON object and nothing else; what was sent was decided, and the change was in force."""
    played = subprocess.run(
        [*DEMO, "--seconds", "4", "--rate", "50", "--json"], cwd=ROOT, capture_output=True, text=True
    )
    assert played.returncode == 0, played.stderr
    summary = json.loads(played.stdout)
    assert summary["ok"]
    assert summary["sent"] == summary["decided"] >= 100
    assert summary["outcomes"]["allow"] > 0
    assert summary["outcomes"]["deny"] > 0
    assert summary["policy_change_in_force_ms"] is not None
    assert summary["alerts"] >= 4, "an access that was not requested and the policies deny, a burst, a role with *"
    assert summary["incidents_missed"] == summary["alerts_invented"] == 0


@pytest.mark.long
@pytest.mark.stream
def test_the_demo_stays_in_the_console_until_it_is_interrupted(tmp_path: Path) -> None:
    """Its decisions, alerts and changes are there, requests go on, and the checks at the end count these too."""
    with (tmp_path / "out").open("wb") as shown:
        command = [*DEMO, "--seconds", "4", "--rate", "50", "--console", "--no-browser"]
        demo = subprocess.Popen(command, cwd=ROOT, stdout=shown, stderr=shown, start_new_session=True)
    try:
        wait_until(lambda: demo.poll() is not None or _address(tmp_path) is not None, "the console is there", 280)
        address = _address(tmp_path)
        assert address is not None, (tmp_path / "out").read_text()
        wait_until(lambda: 'class="chart"' in _page(f"{address}/overview"), "decisions go on")
        assert "privilege-escalation" in _page(f"{address}/alerts")
        assert "lenses6/Role/" in _page(f"{address}/changes")
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(120) == 0, (tmp_path / "out").read_text()
    finally:
        demo.kill()


@pytest.mark.long
@pytest.mark.stream
def test_nothing_outlives_a_demo_that_is_killed(tmp_path: Path) -> None:
    command = [*DEMO, "--json"]
    demo = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _runs_a_job(tmp_path), "the job", 120)
    finally:
        demo.kill()
        demo.wait()
    wait_until(lambda: not processes_naming(str(tmp_path)), "the end of the broker and of the job", 60)
    wait_until(lambda: not list(tmp_path.glob("lockkeeper-demo-*")), "the end of the folder")


def _runs_a_job(folder: Path) -> bool:
    return any(" run " in line for line in processes_naming(str(folder)))


def _address(folder: Path) -> str | None:
    found = re.search(r"http://localhost:\d+", (folder / "out").read_text(errors="replace"))
    return found[0] if found else None


def _page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as response:
        return str(response.read().decode())


def test_json_and_the_console_exclude_each_other() -> None:
    refused = subprocess.run([*DEMO, "--json", "--console"], cwd=ROOT, capture_output=True, text=True)
    assert (refused.returncode, "leave out either --json or --console" in refused.stderr) == (2, True)


def test_a_rate_that_is_no_rate_is_refused_with_the_range() -> None:
    refused = subprocess.run([*DEMO, "--rate", "0"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "rate" in refused.stderr
