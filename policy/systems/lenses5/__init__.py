"""Lenses 5: namespace, application and administration permissions, held through groups; nothing is denied."""

from policy.systems.lenses5.system import Lenses5

SYSTEM = Lenses5()
