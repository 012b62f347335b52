"""Corpora in; chunks, batches and query-document pairs out, as Parquet."""
