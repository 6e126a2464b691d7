"""Lenses 6 IAM: roles of allow and deny statements, held through groups."""

from policy.systems.lenses6.system import Lenses6

SYSTEM = Lenses6()
