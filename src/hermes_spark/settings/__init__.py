"""Settings: their names and defaults (`schema`), where their values come from (`load`), which make sense (`checks`)."""

from hermes_spark.settings.checks import validate
from hermes_spark.settings.load import as_dict, from_json, load, to_json
from hermes_spark.settings.schema import (
    AgentSettings,
    HostSettings,
    IntakeSettings,
    KafkaSettings,
    KafkaSinkSettings,
    ModelSettings,
    RunAheadSettings,
    Settings,
    SinkSettings,
    SnapshotSettings,
    SourceSettings,
    StateSettings,
    StopSettings,
    TelemetrySettings,
    ToolSettings,
    TriggerSettings,
)

__all__ = [
    "AgentSettings",
    "HostSettings",
    "IntakeSettings",
    "KafkaSettings",
    "KafkaSinkSettings",
    "ModelSettings",
    "RunAheadSettings",
    "Settings",
    "SinkSettings",
    "SnapshotSettings",
    "SourceSettings",
    "StateSettings",
    "StopSettings",
    "TelemetrySettings",
    "ToolSettings",
    "TriggerSettings",
    "as_dict",
    "from_json",
    "load",
    "to_json",
    "validate",
]
