"""The settings: a YAML file, then environment variables `LOCKKEEPER_…`, then checks that name the fix."""

from streaming.settings.checks import check_separate_monitor, check_settings
from streaming.settings.errors import SettingsError
from streaming.settings.model import (
    DEFAULT_TRUST,
    MASK,
    MIB,
    Encoding,
    Limits,
    LogSettings,
    MetricsSettings,
    PolicySettings,
    SchemaRegistry,
    Settings,
    TracingSettings,
    access_changes_settings,
    monitor_settings,
    unrecorded_systems,
)
from streaming.settings.serve import RecordMode, ServeSettings
from streaming.settings.sources import (
    OTHER_VARIABLES,
    TEST_PREFIX,
    load_settings,
    parse_text,
    read_yaml,
    variable,
    variables,
)

__all__ = [
    "DEFAULT_TRUST",
    "MASK",
    "MIB",
    "OTHER_VARIABLES",
    "TEST_PREFIX",
    "Encoding",
    "Limits",
    "LogSettings",
    "MetricsSettings",
    "PolicySettings",
    "RecordMode",
    "SchemaRegistry",
    "ServeSettings",
    "Settings",
    "SettingsError",
    "TracingSettings",
    "access_changes_settings",
    "check_separate_monitor",
    "check_settings",
    "load_settings",
    "monitor_settings",
    "parse_text",
    "read_yaml",
    "unrecorded_systems",
    "variable",
    "variables",
]
