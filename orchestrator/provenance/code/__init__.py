"""The code: what git knows of a work tree, its snapshot as a bundle, and the way back; modules from outside of it."""
