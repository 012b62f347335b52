"""Shared by every step: one-line errors, atomic outputs and manifests, the hub."""

from revela.common.errors import RevelaError, unknown_name

__all__ = ["RevelaError", "unknown_name"]
