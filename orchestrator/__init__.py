"""Train PyTorch models on Ray actors; survive losses; rerun any run to the last bit. See README.md."""

from orchestrator.pipeline import Pipeline

__all__ = ["Pipeline"]
__version__ = "0.1.0"
