"""Encode texts (a JSON list on standard input) with sentence-transformers, without Revela.

    python -P alone.py FOLDER …

prints a line of JSON for each folder: the embeddings of the texts as queries and as documents, and
the similarity of each query to each document.
"""

import json
import sys

import torch
from sentence_transformers import SentenceTransformer

*texts, longest = json.load(sys.stdin)
for folder in sys.argv[1:]:
    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32})
    # The other texts as one padded batch.
    query, document = (
        torch.cat([encode(some, convert_to_tensor=True) for some in (texts, [longest])])
        for encode in (model.encode_query, model.encode_document)
    )
    found = {"query": query, "passage": document, "similarity": model.similarity(query, document)}
    print(json.dumps({name: tensor.tolist() for name, tensor in found.items()}))
