"""The table of adapters, and the one way from the settings to the class of a pipeline.

An adapter takes classes of a framework, which it knows by the name of a base: nothing of a framework is imported before the
user's own module has done so. Its `adapt(found, source)` gives a subclass of Pipeline that is built with the arguments of the
source, as every other pipeline is, and so is used where a pipeline is: by the driver, workers, loaders and served models.

A new adapter is a folder beside this file, a line in ADAPTERS and a function that imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from orchestrator import pipeline
from orchestrator.adapters.adapted import Apart, Course
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
    # All that does not fit, with the settings too. The last says whether the code is built also where nothing was found before.
    problems: Callable[[type, Source, Course, Apart, bool], list[str]]
    data_base: str  # the name of the class from which what gives its data inherits

    def takes(self, found: type) -> bool:
        return self._inherits(found, self.base)

    def takes_data(self, found: type) -> bool:
        """Whether it gives a class of this adapter its data. Others that have the methods may, too."""
        return self._inherits(found, self.data_base)

    def _inherits(self, found: type, base: str) -> bool:
        return any(
            kind.__name__ == base and any(_is_of(kind.__module__, package) for package in self.packages)
            for kind in found.__mro__
        )


def _is_of(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _lightning(found: type, source: Source) -> type[Pipeline]:
    from orchestrator.adapters.lightning import adapt

    return adapt(found, source)


def _problems_of_lightning(found: type, source: Source, course: Course, apart: Apart, builds: bool) -> list[str]:
    from orchestrator.adapters.lightning import problems

    return problems(found, source, course, apart, builds=builds)


ADAPTERS = (
    Adapter(
        *("LightningModule", ("lightning", "pytorch_lightning"), _lightning, _problems_of_lightning),
        data_base="LightningDataModule",
    ),
)


def adapter_of(found: type) -> Adapter | None:
    """The one that takes this class; None where none does."""
    return next((each for each in ADAPTERS if inspect.isclass(found) and each.takes(found)), None)


def problems(source: Source, course: Course, apart: Apart = nullcontext, *, builds: bool = False) -> list[str]:
    """All that does not fit of the classes, and of what they say, beside the settings: a sentence each. apart: a block that
    leaves the process as it was, in which the user's code is built; builds: it is also where nothing was found before."""
    try:
        found = import_string.find("pipeline.target", source.target, "class")
        adapter = adapter_of(found)
        if adapter is not None:
            return adapter.problems(found, source, course, apart, builds)
        find(source)
    except ConfigurationError as error:
        return error.with_remedy()
    return []


def find(source: Source) -> type[Pipeline]:
    """The class of the pipeline that the source names, checked to be whole and to take the arguments.

    Raises ConfigurationError: no such module or class, nothing that is taken here, a method missing, arguments that do not fit.
    """
    found = import_string.find("pipeline.target", source.target, "class")
    adapter = adapter_of(found)
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
