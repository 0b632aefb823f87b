"""The environment has to stand before anything imports torch (rule B3), and no test depends on the wall clock."""

import hypothesis

from orchestrator.numerics.determinism import prepare_environment

prepare_environment()
hypothesis.settings.register_profile("orchestrator", deadline=None)
hypothesis.settings.load_profile("orchestrator")
