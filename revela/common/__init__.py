"""Shared by every step: one-line errors, atomic outputs and manifests, the hub."""
