"""The table of adapters, and the one way from the settings to the class of a pipeline.

An adapter takes classes of a framework, which it knows by the name of a base: nothing of a framework is imported before the
user's own module has done so. Its `adapt(found, source)` gives a subclass of Pipeline that is built with the arguments of the
source, as every other pipeline is, and so is used where a pipeline is: by the driver, workers, loaders and served models.

A new adapter is a folder beside this file, a line in ADAPTERS and a function that imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator import pipeline
from orchestrator.adapters.source import Source
from orchestrator.common import import_string
from orchestrator.errors import ConfigurationError
from orchestrator.pipeline import Pipeline


@dataclass(frozen=True)
class Adapter:
    """Which classes an adapter takes, and how it is imported."""

    base: str  # the name of the class from which they inherit
    packages: tuple[str, ...]  # of which that base is: the first part of its module, or the whole module
    adapt: Callable[[type, Source], type[Pipeline]]  # raises ConfigurationError for what does not fit

    def takes(self, found: type) -> bool:
        return any(
            kind.__name__ == self.base and any(_is_of(kind.__module__, package) for package in self.packages)
            for kind in found.__mro__
        )


def _is_of(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _lightning(found: type, source: Source) -> type[Pipeline]:
    from orchestrator.adapters.lightning import adapt

    return adapt(found, source)


ADAPTERS = (Adapter("LightningModule", ("lightning", "pytorch_lightning"), _lightning),)


def find(source: Source) -> type[Pipeline]:
    """The class of the pipeline that the source names, checked to be whole and to take the arguments.

    Raises ConfigurationError: no such module or class, nothing that is taken here, a method missing, arguments that do not fit.
    """
    found = import_string.find("pipeline.target", source.target, "class")
    adapter = next((each for each in ADAPTERS if inspect.isclass(found) and each.takes(found)), None)
    if adapter is not None:
        return adapter.adapt(found, source)
    kind = pipeline.find(source.target, source.args)
    if source.data is not None:
        raise ConfigurationError(
            [f"pipeline.data: {source.target} is a Pipeline, whose datasets() gives the data"],
            "leave pipeline.data out; what datasets() needs is among the pipeline.args",
            code="pipeline.data-twice",
        )
    return kind
