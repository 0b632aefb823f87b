"""Example pipelines, each small and real."""
