"""What `choose` predicts is what paced steps on real ranks take: bench/planner.py measures it, and --all runs that."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_predictions_hold_on_real_ranks() -> None:
    """Within 5%, after more patience where other programs hold the cores."""
    done = subprocess.run([sys.executable, "bench/planner.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all within 5%"
