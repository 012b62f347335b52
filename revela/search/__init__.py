"""Indexes texts with a retriever, for search from the shell or in a browser."""
