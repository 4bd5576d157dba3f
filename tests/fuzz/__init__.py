"""Everything that parses outside bytes, fed with any bytes: see targets.py."""

BREAK = b"\n---\n"  # between the parts of an input
