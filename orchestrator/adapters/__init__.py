"""Classes of other frameworks as pipelines: `table.py` says which adapter takes a class; each adapter has its own folder."""
