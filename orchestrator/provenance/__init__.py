"""The inputs of a run: code (git), data (DVC), environment. Captured at launch, never changed."""
