"""A sweep as its driver sees it: journal and MLflow run (`record`), progress (`board`), what it came to (`report`)."""
