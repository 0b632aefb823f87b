"""The environment has to stand before anything imports torch (rule B3)."""

from orchestrator.numerics.determinism import prepare_environment

prepare_environment()
