"""The dashboard's pages: the daemon's API, read with the person's own rights, as HTML."""
