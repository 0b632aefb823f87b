"""Where members run: resources, nodes, the project's files on them."""
