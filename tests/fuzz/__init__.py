"""Everything that parses outside bytes, fed with any bytes: see targets.py."""
