"""A YAML file in, checked and typed settings out."""

from revela.config.file import Config, load_config, parse_config
from revela.config.steps import parse_settings

__all__ = ["Config", "load_config", "parse_config", "parse_settings"]
