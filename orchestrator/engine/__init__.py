"""A worker's life: compute shards, agree, sum, step. No Ray, no MLflow: a thread of a test can live it too."""
