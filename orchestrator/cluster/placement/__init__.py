"""Where members live: resources, nodes, the project's files there."""
