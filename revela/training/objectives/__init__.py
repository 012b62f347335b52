"""The training objectives; each is a module whose forward returns a loss and measures."""
