"""`lockkeeper demo`, played for real: broker, policies, traffic and the job."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_rate_that_is_no_rate_is_refused_with_the_range() -> None:
    refused = subprocess.run([*DEMO, "--rate", "0"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "rate" in refused.stderr
