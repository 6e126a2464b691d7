"""Documents and facts, their versions, and snapshots of them."""
