"""A model and a task in; scores and ranked lists out."""
