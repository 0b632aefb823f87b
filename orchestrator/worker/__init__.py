"""The work of a member: compute shards, vote, sum, step. No Ray and no MLflow: tests run members in threads."""
