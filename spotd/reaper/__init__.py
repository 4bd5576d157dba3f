"""`spot-reaper`: terminates machines whose expiry has passed, without spotd and its database.

It shares no state with the daemon, so that nothing that breaks one breaks the other: a program and
a unit of its own, credentials that can list and terminate, a small configuration, tags.
"""
