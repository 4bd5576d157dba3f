"""What a training program imports of spotd, and all of it: Python >= 3.10, the standard library and
torch. The agent puts it on the program's path."""
