"""Who looks at the console, and the policies of which systems that viewer may see."""

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

VIEWER = "lockkeeper.viewer"
"""Where signing in puts the viewer of a request into its ASGI scope."""


class Viewer(msgspec.Struct, frozen=True):
    """`systems`: whose policies, decisions and alerts it may see; None: all. `name`: "" without signing in.

    `session`: its id, "" where there are no sessions.
    """

    name: str = ""
    systems: frozenset[str] | None = None
    session: str = ""

    def may_see(self, system: str) -> bool:
        """Whether what is of this system is shown; "": what is of none, such as a topic that many share."""
        return self.systems is None or system in self.systems


EVERYTHING = Viewer()
"""The viewer on the machine itself, where nobody signs in."""


def viewer_of(request: HTTPConnection) -> Viewer:
    """The viewer of a request. Raises HTTPException for one that came past signing in: nothing is shown."""
    viewer = request.scope.get(VIEWER)
    if not isinstance(viewer, Viewer):
        raise HTTPException(403, "sign in to see this")
    return viewer
