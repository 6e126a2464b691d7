"""Cedar as a policy language, evaluated by the kept library cedarpy."""

from policy.systems.cedar.system import Cedar

SYSTEM = Cedar()
