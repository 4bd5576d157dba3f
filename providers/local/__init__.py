"""A simulated cloud on this machine, with real processes, SSH and metadata services.

`server` is its server program, `cloud` the provider adapter, and `control` the client for tests,
benchmarks and `spotctl`.
"""
