"""What only checks a configuration imports what it checks with: torch, which builds the model, and neither Ray nor MLflow."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCENE = """
import sys
import orchestrator.commands.dry_run
assert "torch" in sys.modules
assert not {"ray", "mlflow", "matplotlib", "requests"} & sys.modules.keys()
"""


@pytest.mark.slow
def test_a_plan_needs_no_ray() -> None:
    subprocess.run([sys.executable, "-c", SCENE], check=True)
