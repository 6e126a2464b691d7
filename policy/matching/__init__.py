"""Finding grants: indexes of patterns, and which pattern subsumes which."""
