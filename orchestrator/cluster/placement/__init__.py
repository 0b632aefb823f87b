"""The places of members: resources, nodes, the project's files on them."""
