"""What a run was made of: code (git), data (DVC), environment. Captured at launch, never changed."""
