"""The daemon's configuration: a TOML file, the environment, and what they must not say."""

from spotd.config.config import Config, ConfigError
from spotd.config.load import load_config

__all__ = ["Config", "ConfigError", "load_config"]
