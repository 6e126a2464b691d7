"""Importers: what a platform keeps today, as policy documents. A new source is one module and one line here."""

from collections.abc import Mapping

from policy.importers import cdap, lenses5, lenses6, ranger, streamsets, ververica
from policy.importers.frame import Finding, ImportInput, Source, Translation, translate
from policy.importers.written import state_of, to_text

SOURCES: Mapping[str, Source] = {
    "cdap": cdap.SOURCE,
    "lenses5": lenses5.SOURCE,
    "lenses6": lenses6.SOURCE,
    "ranger": ranger.SOURCE,
    "streamsets": streamsets.SOURCE,
    "ververica": ververica.SOURCE,
}

__all__ = ["SOURCES", "Finding", "ImportInput", "Source", "Translation", "state_of", "to_text", "translate"]
