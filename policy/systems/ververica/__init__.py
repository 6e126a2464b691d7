"""Ververica Platform: four roles, assigned to users and identity-provider groups in a namespace or a workspace."""

from policy.systems.ververica.system import Ververica

SYSTEM = Ververica()
