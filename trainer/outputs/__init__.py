"""Upload the files that a program leaves on its machine."""
