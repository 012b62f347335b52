"""What a user types first: `revela new`, `check`, `run`, `status`."""
