"""Evaluates models on tasks; writes scores and ranked lists."""
