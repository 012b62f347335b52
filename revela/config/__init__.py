"""Reads a YAML file into checked, typed settings."""

from revela.config.file import Config
from revela.config.read import load_config, parse_config
from revela.config.settings import parse_settings

__all__ = ["Config", "load_config", "parse_config", "parse_settings"]
