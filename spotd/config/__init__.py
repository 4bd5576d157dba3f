"""The daemon's configuration: a TOML file, the environment, and what follows from them."""
