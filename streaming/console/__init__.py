"""What the commands compute, as pages in a browser: server-rendered, read-only, without anything from elsewhere."""
