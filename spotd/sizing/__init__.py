"""How much memory and time training takes, from a model's shape: arithmetic, no torch.

`shape` counts parameters, `memory` bytes on one GPU, `throughput` tokens per second; `advice` says
how to speed up a slow run. docs/rightsizing.md has each formula with its source.
"""
