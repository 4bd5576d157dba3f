"""The dashboard: HTML pages of the daemon's API, read with the user's own permissions."""
