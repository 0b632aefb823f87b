"""Whether others can have the commit that a run is made from. Asks nobody: what the last fetch or push knew counts."""

from __future__ import annotations

from orchestrator.provenance.code import git
from orchestrator.provenance.code.worktree import WorkTree


def unpushed(work: WorkTree) -> str | None:
    """The remedy if no clone has the commit, or None. A rerun needs none, since the record has the code; a person and
    `compare=` do. Nothing is said of a restored snapshot, which is nobody's repository."""
    if work.head is None or work.is_restored:
        return None
    if not git.line(work.root, "remote"):
        return "the repository has no remote, so nobody else has its commits; git remote add origin URL, and git push"
    known = git.is_on_a_remote(work.root, work.head)
    return None if known else f"commit {work.head[:12]} is on no branch of a remote; git push"
