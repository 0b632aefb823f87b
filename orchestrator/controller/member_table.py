"""The living members by id, as a value: a change makes a new table, at about the cost of ten members for a thousand. Pure.

Members lie in blocks of ids that follow one another, so that a change copies one block and the list of blocks. Beside them the
table keeps how many members are alike in what the controller counts at each event (`Status`), which spares it a look at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

_BLOCK = 32  # ids in a block; with a thousand members there are as many blocks


class Status(NamedTuple):
    """The facts by which members are counted."""

    role: str  # what it does in the run
    ready: bool  # it is prepared
    joins: bool  # it got ready while a generation had room for it
    leaves: bool  # its node goes away
    takes_part: bool  # in the present generation
    reported: bool  # how that has ended for it
    finished: bool  # it has done all steps


class Counted(Protocol):
    """A member, as far as the table asks it."""

    @property
    def status(self) -> Status: ...


Value = TypeVar("Value", bound=Counted)


class MemberTable(Mapping[int, Value], Generic[Value]):
    """Ids are given in ascending order and never again, so the order of the table is that of age."""

    __slots__ = ("_blocks", "_counts", "_length")

    def __init__(self) -> None:
        self._blocks: dict[int, dict[int, Value]] = {}
        self._counts: dict[Status, int] = {}
        self._length = 0

    def __getitem__(self, member: int) -> Value:
        return self._blocks[member // _BLOCK][member]

    def __iter__(self) -> Iterator[int]:
        for block in self._blocks.values():
            yield from block

    def __len__(self) -> int:
        return self._length

    def __contains__(self, member: object) -> bool:
        return isinstance(member, int) and member in self._blocks.get(member // _BLOCK, ())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def with_one(self, member: int, value: Value) -> MemberTable[Value]:
        """The table with this value for the member, which is new or takes the place of the one before."""
        made, block = self._copy(member)
        before = block.get(member)
        block[member] = value
        made._blocks[member // _BLOCK] = block
        made._length += before is None
        if before is None:
            made._count(value.status, 1)
        elif (was := before.status) != (now := value.status):
            made._count(was, -1)
            made._count(now, 1)
        return made

    def without(self, member: int) -> MemberTable[Value]:
        """The table without this member, which need not be there."""
        if member not in self:
            return self
        made, block = self._copy(member)
        made._count(block.pop(member).status, -1)
        made._length -= 1
        if block:
            made._blocks[member // _BLOCK] = block
        else:
            del made._blocks[member // _BLOCK]
        return made

    def count(self, role: str | None = None, **facts: bool) -> int:
        """How many members have this role, and these facts of `Status`."""
        wanted = tuple(facts.items())
        return sum(
            number
            for status, number in self._counts.items()
            if role in (None, status.role) and all(getattr(status, name) == value for name, value in wanted)
        )

    def _copy(self, member: int) -> tuple[MemberTable[Value], dict[int, Value]]:
        """A table to be changed, and a block of it to be put into it."""
        made = MemberTable[Value]()
        made._blocks, made._counts, made._length = dict(self._blocks), self._counts, self._length
        return made, dict(self._blocks.get(member // _BLOCK, {}))

    def _count(self, status: Status, change: int) -> None:
        self._counts = {**self._counts, status: self._counts.get(status, 0) + change}
        if not self._counts[status]:
            del self._counts[status]
