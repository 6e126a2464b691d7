"""CDAP authorization: four privileges side by side on the entities of a tree."""

from policy.systems.cdap.system import Cdap

SYSTEM = Cdap()
