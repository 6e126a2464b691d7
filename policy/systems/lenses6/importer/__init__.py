"""What Lenses 6 keeps, as policy documents."""

from policy.systems.lenses6.importer.iam import SOURCE

SOURCES = {"lenses6": SOURCE}
