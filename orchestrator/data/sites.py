"""Which shards take part in a step where some are pinned to sites, and whose samples may be read in this process.

A shard of a site that is away has an empty micro-batch: whoever hosts it reads nothing and contributes nothing. The trace
says which site was away in which step. A repetition is told so from there (`plan.Data.sat_out`), and needs no sites.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy

from orchestrator.data.division import Division
from orchestrator.data.plan import Data
from orchestrator.data.sampling.population import Whole
from orchestrator.errors import ConfigurationError, Inconsistent


class Attendance:
    """Which shards take part where some are pinned to sites. offered: the sites of this node. own: the shards whose samples
    may be read here, in order."""

    def __init__(self, data: Data, offered: Collection[str] = ()) -> None:
        self._sat_out = data.sat_out
        self._site_of = {shard: site for site, shards in data.sites.items() for shard in shards}
        self._offered = offered
        self._away: tuple[int, ...] = ()
        self._shards = data.shards
        own = (shard for shard in range(data.shards) if self._site_of.get(shard) in (None, *offered))
        self.own: tuple[int, ...] = tuple(own)

    @property
    def is_pinned(self) -> bool:
        return bool(self._site_of)

    def goes_on_without(self, shards: Sequence[int]) -> None:
        """In this generation these are away."""
        self._away = tuple(shards)

    def absent(self, step: int) -> tuple[int, ...]:
        """The shards that sit this step of the run out."""
        then = self._sat_out.get(step, ())
        return tuple(sorted({*then, *self._away})) if then or self._away else ()

    def check(self, shard: int) -> None:
        """Raises Inconsistent where its samples are not to be read here."""
        if shard in self._site_of and self._site_of[shard] not in self._offered:
            raise Inconsistent(
                f"samples of shard {shard}, of site {self._site_of[shard]}, were to be read at a node that does not offer it",
                "this is a fault of orchestrator",
                code="site.wrong-node",
            )

    def confine(
        self, train: Any, division: Division | None, lengths: Sequence[int] | None, subset: Whole | None
    ) -> None:
        """From now on no file of the training set is opened here but those of `own`; lengths: samples of each file, where it
        has files. Raises ConfigurationError where a site is no matter of whole clients and files."""
        if division is None or division.owners is None:
            raise ConfigurationError(
                ["data.sites: without a data.partition every shard reads all files"],
                "divide the samples by whose they are, as data.partition=natural does, or leave data.sites out",
                code="site.no-partition",
            )
        if (clients := len(division.parts)) > self._shards:
            raise ConfigurationError(
                [
                    f"data.sites: there are {clients} clients, of which each round draws {self._shards}, whatever their site"
                ],
                f"set data.shards={clients}, so that each client is a shard of its own",
                code="site.clients",
            )
        if lengths is not None:
            allowed = _files_of(self._sites_by_file(division, lengths, subset), {*self._offered, ""})
            if hasattr(train, "only"):
                train.only(allowed)

    def _sites_by_file(self, division: Division, lengths: Sequence[int], subset: Whole | None) -> list[set[str]]:
        ends = numpy.cumsum(lengths)
        found: list[set[str]] = [set() for _ in ends]
        for shard, part in enumerate(division.parts):
            samples = part.samples if subset is None else subset[part.samples]
            for number in numpy.unique(ends.searchsorted(samples, "right")).tolist():
                found[number].add(self._site_of.get(shard, ""))
        if mixed := [number for number, sites in enumerate(found) if len(sites) > 1]:
            sites = " and of ".join(site or "no site" for site in sorted(found[mixed[0]]))
            raise ConfigurationError(
                [f"data.sites: file {mixed[0]} of the training set has samples of {sites}"],
                "divide the samples by files, so that each file is of one site",
                code="site.mixed-file",
            )
        return found


def _files_of(sites: Sequence[set[str]], offered: Collection[str]) -> frozenset[int]:
    return frozenset(number for number, of in enumerate(sites) if of <= {*offered})
