"""Train PyTorch models on Ray actors; survive losses; rerun any run to the last bit. See README.md.

The names of `__all__` are public: CHANGELOG.md says what may change of them between versions.
"""

from orchestrator.common import early_signals

try:
    if early_signals.is_command():
        early_signals.heed()
    from orchestrator import moved
    from orchestrator.api import (
        Card,
        Comparison,
        Figures,
        Rerun,
        Run,
        Staleness,
        Sweep,
        compare,
        launch,
        load_ensemble,
        look,
        rerun,
        resume,
        run,
        runs,
        staleness,
        sweep,
    )
    from orchestrator.data.files.dataset import Files
    from orchestrator.data.files.packed import Packed
    from orchestrator.data.files.stream import Stream
    from orchestrator.errors import OrchestratorError
    from orchestrator.pipeline import Pipeline
except (ImportError, AttributeError) as error:
    from orchestrator.common import shadowing

    shadowing.tell(error)
    raise
except KeyboardInterrupt as interrupt:
    import sys

    if not early_signals.is_command():
        raise
    code = early_signals.tell(interrupt)
    exec("")  # as in `__main__`
    sys.exit(code)

__all__ = [
    "Card",
    "Comparison",
    "Figures",
    "Files",
    "OrchestratorError",
    "Packed",
    "Pipeline",
    "Rerun",
    "Run",
    "Staleness",
    "Stream",
    "Sweep",
    "compare",
    "launch",
    "load_ensemble",
    "look",
    "rerun",
    "resume",
    "run",
    "runs",
    "staleness",
    "sweep",
]
moved.install()
__version__ = "0.1.0"
