"""Train PyTorch models on Ray actors; survive losses; rerun any run to the last bit. See README.md."""

from orchestrator.api import Run, launch
from orchestrator.pipeline import Pipeline

__all__ = ["Pipeline", "Run", "launch"]
__version__ = "0.1.0"
