"""A rehearsal: a job of one's own, on the machine that it is meant for, taken away by its cloud's
own interruption, and what became of it, measured.

The daemon does all of it as always; a rehearsal submits, asks the cloud, watches and cancels.
"""
