"""`ui`, and the server of MLflow that it shows."""
