"""A cloud on this machine: real processes, real SSH, real metadata documents, nothing to rent.

`server` is the program, `cloud` the adapter, `control` the client of tests, benches and `spotctl`.
"""
