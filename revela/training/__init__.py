"""Trains a retriever on batches or pairs; writes it with its log and its manifest."""
