"""Turns corpora into Parquet files of chunks, batches and query-document pairs."""
