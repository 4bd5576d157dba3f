"""`spot-reaper`: ends machines whose expiry has passed, with spotd and its database dead.

It shares no state with the daemon, so that nothing that breaks the one breaks the other: a program
and a unit of its own, credentials that can list and terminate, a small configuration, tags.
"""
