"""Batches or pairs in; a trained retriever out, with its log and its manifest."""
