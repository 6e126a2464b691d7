"""The targets: everything that takes what somebody else wrote."""

from tests.fuzz.campaign import Make
from tests.fuzz.targets.audit import AuditEvents, MonitorRecords
from tests.fuzz.targets.cedar import CedarTexts
from tests.fuzz.targets.configuration import Importers, PolicyFiles, SettingsFiles
from tests.fuzz.targets.decisions import Decisions
from tests.fuzz.targets.derived import DerivedFacts
from tests.fuzz.targets.documents import Documents, HistoryRecords
from tests.fuzz.targets.http import Http
from tests.fuzz.targets.letters import DeadLetters
from tests.fuzz.targets.memory import Memory
from tests.fuzz.targets.names import Names, Patterns
from tests.fuzz.targets.pairs import Pairs
from tests.fuzz.targets.requests import Requests
from tests.fuzz.targets.texts import Texts

TARGETS: tuple[Make, ...] = (
    *(Requests, Decisions, AuditEvents, MonitorRecords, DeadLetters, Documents, HistoryRecords, Texts, Patterns, Names),
    *(DerivedFacts, SettingsFiles, PolicyFiles, Importers, Memory, Pairs, Http, CedarTexts),
)
"""Each is made with the seed of the run."""
