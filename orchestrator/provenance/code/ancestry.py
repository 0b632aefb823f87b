"""Two snapshots against the last commit that both were made from: what each side changed, and where the changes meet.

The commits are those of the repository where the question is asked; the snapshots come from their bundles. They meet in a
repository in a temporary folder, which borrows the user's objects and writes none.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.common import temporary
from orchestrator.errors import NotRerunnable
from orchestrator.provenance.code import changes, git
from orchestrator.provenance.code.changes import Change

_JUDGED = 100


@dataclass(frozen=True)
class Ancestry:
    """Two snapshots and their common ancestor. commit: the common ancestor; a, b: what each side changed since; both: paths
    that both sides changed to different contents; conflicts: those of them where they changed the same lines."""

    commit: str
    a: list[Change]
    b: list[Change]
    both: list[str]
    conflicts: list[str]

    def as_dict(self) -> dict[str, Any]:
        sides = {side: [asdict(each) for each in getattr(self, side)] for side in ("a", "b")}
        return {"commit": self.commit, **sides, "both": self.both, "conflicts": self.conflicts}

    @property
    def text(self) -> str:
        lines = [f"since their common ancestor {self.commit}:"]
        for side, found in (("a", self.a), ("b", self.b)):
            lines.append(f"  run {side} changed {', '.join(map(_told, found)) or 'nothing'}")
        if self.both:
            harmless = [path for path in self.both if path not in self.conflicts]
            lines += [f"  both changed {', '.join(harmless)}, in different places"] if harmless else []
            lines += [f"  both changed the same lines of {', '.join(self.conflicts)}"] if self.conflicts else []
        return "\n".join(lines)


def ancestry(project: Path, origins: tuple[str | None, str | None], bundles: tuple[Path, Path]) -> Ancestry | str:
    """Both snapshots against their common ancestor, or why that cannot be said. project: whose repository knows the commits;
    origins: those that the snapshots were made from. Raises NotRerunnable for a damaged bundle."""
    for side, origin in zip("ab", origins, strict=True):
        if origin is None:
            return f"the code of run {side} was made from no commit"
        try:
            git.run(project, "cat-file", "-e", f"{origin}^{{commit}}")
        except (git.GitError, git.GitMissing):
            return f"commit {origin}, which run {side} was made from, is not in this repository; git fetch"
    base = git.line(project, "merge-base", *(str(origin) for origin in origins))
    objects = git.line(project, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    if base is None or objects is None:
        return f"the commits {origins[0]} and {origins[1]} have no common ancestor"
    with temporary.folder() as folder:
        repository = folder / "both"
        sides = changes.open_bundles(repository, *bundles)
        (repository / "objects" / "info").mkdir(parents=True, exist_ok=True)
        (repository / "objects" / "info" / "alternates").write_text(f"{objects}\n", encoding="utf-8")
        try:
            a, b = (changes.between(repository, base, side) for side in sides)
            both = _both(repository, sides, a, b)
            conflicts = [path for path in both[:_JUDGED] if not _merges(repository, folder, base, sides, path)]
        except git.GitError as error:
            raise NotRerunnable(
                f"the code cannot be compared with {base}: {error}", "git fsck", code="git.no-comparison"
            ) from None
    return Ancestry(base, a, b, both, conflicts)


def _both(repository: Path, sides: list[str], a: list[Change], b: list[Change]) -> list[str]:
    """The paths that both changed, and not to the same."""
    shared = {each.path for each in a} & {each.path for each in b}
    return sorted(shared & {each.path for each in changes.between(repository, *sides)})


def _merges(repository: Path, scratch: Path, base: str, sides: list[str], path: str) -> bool:
    """Whether git merges the two changes of a file without help; what one side removed or both added it does not."""
    names = []
    for number, commit in enumerate((sides[0], base, sides[1])):
        file = scratch / str(number)
        try:
            file.write_bytes(git.run(repository, "cat-file", "blob", f"{commit}:{path}", variables=git.ALONE))
        except git.GitError:
            return False
        names.append(os.fspath(file))
    try:
        git.run(repository, "merge-file", "-p", "-q", *names, variables=git.ALONE)
    except git.GitError:
        return False
    return True


def _told(change: Change) -> str:
    return change.path if change.kind == "changed" else f"{change.path} ({change.kind})"
