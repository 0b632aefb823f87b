"""Stages of a model: where it is cut, how one stage computes, and how members that host stages take a step together."""
