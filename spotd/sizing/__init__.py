"""How much memory and time training takes, from a model's shape: arithmetic alone, no torch.

`shape` counts parameters, `memory` bytes on one GPU, `throughput` tokens per second; `advice` says
what a slow run could do instead. docs/rightsizing.md has each formula with its source.
"""
