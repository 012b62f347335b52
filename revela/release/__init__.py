"""Releases retrievers: checks them in sentence-transformers, merges and uploads them."""
