"""StreamSets Control Hub: owners and shares on objects, as of logins and starts of jobs."""

from policy.systems.streamsets.system import StreamSets

SYSTEM = StreamSets()
