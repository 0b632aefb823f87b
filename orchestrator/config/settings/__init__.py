"""The whole configuration: frozen dataclasses, and the loader that fills them from files and the command line.

    settings = load(["digits"], ["cluster.workers=2", "topology=tree"])
    settings.cluster.workers.start               # 2
    from_yaml(to_yaml(settings)) == settings     # True: this text is what workers, records and reruns get

To add a setting, add one field to its section in `sections.py`: annotation, default, and `result(...)` or
`execution(...)` with one sentence and what the value must be. Loading, messages, identity and `docs/settings.md` follow
from that line. A rule between keys is one entry of `RULES` in a file of `rules/`.

A setting that is not built yet has no field, so that giving it is an error. OmegaConf supplies the YAML dialect and the
interpolations. Types are pydantic's (`orchestrator/common/checked_values.py`): OmegaConf damages text that looks like a number
(`run.name=1e3`), stops at the first error, and names its own internals in messages.

    sections.py   the fields
    rules/        the rules between fields, by what they are about
    schema.py     the whole, its keys, and how one is found
    sources.py    a file or the command line as a list of paths and values
    training_arguments.py  a file of transformers' TrainingArguments as settings
    loading.py    sources merged, interpolated, converted; every problem found
    views.py      settings as YAML, as flat keys, as an identity, as a page of documentation
"""

from __future__ import annotations

from orchestrator.common.values import Every, Span, Steps, Workers
from orchestrator.config.settings.loading import from_sources, from_yaml, load, origins
from orchestrator.config.settings.schema import Settings
from orchestrator.config.settings.sections import (
    BeginSettings,
    ChaosSettings,
    CheckpointSettings,
    CheckSettings,
    ClusterSettings,
    DataSettings,
    EarlyStoppingSettings,
    EvaluationSettings,
    GradientSettings,
    InitialSettings,
    LocalSettings,
    OptimizerSettings,
    PipelineSettings,
    PrivacySettings,
    RunSettings,
    ScheduleSettings,
    TraceSettings,
    TrackingSettings,
    TransportSettings,
    TuningSettings,
    UpdateSettings,
)
from orchestrator.config.settings.views import (
    as_yaml,
    choices,
    described,
    determining,
    document,
    flat,
    identifying,
    names,
    redactor,
    shown,
    to_dict,
    to_yaml,
)

__all__ = [
    "BeginSettings",
    "ChaosSettings",
    "CheckSettings",
    "CheckpointSettings",
    "ClusterSettings",
    "DataSettings",
    "EarlyStoppingSettings",
    "EvaluationSettings",
    "Every",
    "GradientSettings",
    "InitialSettings",
    "LocalSettings",
    "OptimizerSettings",
    "PipelineSettings",
    "PrivacySettings",
    "RunSettings",
    "ScheduleSettings",
    "Settings",
    "Span",
    "Steps",
    "TraceSettings",
    "TrackingSettings",
    "TransportSettings",
    "TuningSettings",
    "UpdateSettings",
    "Workers",
    "as_yaml",
    "choices",
    "described",
    "determining",
    "document",
    "flat",
    "from_sources",
    "from_yaml",
    "identifying",
    "load",
    "names",
    "origins",
    "redactor",
    "shown",
    "to_dict",
    "to_yaml",
]
