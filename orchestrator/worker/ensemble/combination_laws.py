"""The laws that every combination keeps. The tests hold those of the table to them, and a launch a user's own.

probabilities    of the same shape as a member's, 0 or more, adding up to one
unanimous        members that say the same are taken at their word: the most probable class is theirs
of equals        the order of members with equal weights does not count
weights          one for each member, 0 or more, adding up to one; asked again, the same
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.worker.ensemble.combinations import COMBINATIONS

_CLOSE = 1e-9


def problems(name: str, options: Mapping[str, Any], members: int) -> list[str]:
    """Says what is wrong with a combination of the user's project; at most one sentence."""
    return COMBINATIONS.judge(name, lambda: broken(name, options, members))


def broken(name: str, options: Mapping[str, Any], members: int) -> str | None:
    """The law that it breaks, as a predicate; None where it keeps to all."""
    import torch

    build = COMBINATIONS.build(name, options)
    found = [build(members).weigh(_loss) for _ in range(2)]
    weights = found[0]
    if len(weights) != members or min(weights) < 0 or abs(sum(weights) - 1) > _CLOSE:
        return f"gives the weights {weights}; there is one for each of {members} members, and they add up to one"
    if found[1] != weights:
        return "is not pure: asked again it gave other weights"
    combination = build(members)
    generator = torch.Generator().manual_seed(members)
    outputs = torch.softmax(3 * torch.randn(members, 7, 4, generator=generator, dtype=torch.float64), -1)
    equal = torch.full((members,), 1 / members, dtype=torch.float64)
    whole = combination.combine(outputs.clone(), equal)
    if whole.shape != outputs.shape[1:] or bool((whole < 0).any()) or bool(((whole.sum(-1) - 1).abs() > _CLOSE).any()):
        return "does not give probabilities of the shape of a member's that add up to one"
    if bool(((combination.combine(outputs.flip(0), equal) - whole).abs() > _CLOSE).any()):
        return "gives something else when members of equal weights stand in another order"
    alike = outputs[:1].expand_as(outputs)
    if not torch.equal(combination.combine(alike, equal).argmax(-1), outputs[0].argmax(-1)):
        return "gives another class than all members do"
    return None


def _loss(weights: Sequence[float]) -> float:
    """Least at weights that rise with the member."""
    wanted = [2 * (member + 1) / (len(weights) * (len(weights) + 1)) for member in range(len(weights))]
    return sum((weight - want) ** 2 for weight, want in zip(weights, wanted, strict=True))
