"""Train PyTorch models on Ray actors; survive losses; rerun any run to the last bit. See README.md."""

from orchestrator.api import Run, Staleness, launch, load_ensemble, look, staleness
from orchestrator.pipeline import Pipeline

__all__ = ["Pipeline", "Run", "Staleness", "launch", "load_ensemble", "look", "staleness"]
__version__ = "0.1.0"
