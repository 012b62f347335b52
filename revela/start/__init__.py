"""Plans and monitors runs: what jobs need, what they will cost, and their progress."""
