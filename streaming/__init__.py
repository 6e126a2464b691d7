"""The enforcer and all around it: what carries bytes to `policy` and decisions away."""

DISTRIBUTION = "lockkeeper-authz"
"""What to install, and whose version is ours. On the public package index, `lockkeeper` is somebody else's program."""
