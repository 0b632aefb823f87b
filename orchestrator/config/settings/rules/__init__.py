"""The rules between keys of the configuration, by what they are about; a rule is one entry of a `RULES`."""

from __future__ import annotations

from orchestrator.config.settings.rules import (
    chaos,
    checks,
    execution,
    free_running,
    idle,
    local_steps,
    privacy,
    sharded,
    sites,
    stages,
    training,
)
from orchestrator.config.settings.rules.rule import Idle, Rule

RULES: tuple[Rule, ...] = (
    *(*training.RULES, *local_steps.RULES, *execution.RULES, *privacy.RULES, *stages.RULES, *sites.RULES),
    *free_running.RULES,
    *sharded.RULES,
    *checks.RULES,
    *chaos.RULES,
)
IDLE: tuple[Idle, ...] = idle.RULES
