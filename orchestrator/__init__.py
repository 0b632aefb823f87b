"""Train PyTorch models on Ray actors; survive losses; rerun any run to the last bit. See README.md.

The names of `__all__` are public: CHANGELOG.md says what may change of them between versions.
"""

from orchestrator import moved
from orchestrator.api import Run, Staleness, launch, load_ensemble, look, staleness
from orchestrator.data.files.dataset import Files
from orchestrator.data.files.packed import Packed
from orchestrator.data.files.stream import Stream
from orchestrator.errors import OrchestratorError
from orchestrator.pipeline import Pipeline

__all__ = [
    "Files",
    "OrchestratorError",
    "Packed",
    "Pipeline",
    "Run",
    "Staleness",
    "Stream",
    "launch",
    "load_ensemble",
    "look",
    "staleness",
]
moved.install()
__version__ = "0.1.0"
