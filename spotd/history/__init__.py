"""What was: how machines fared here and elsewhere, what prices did, and what follows from it.

Pure: no clock, no chance, no I/O. Above `decide`, which needs nothing of it.
"""
