"""Generation with transformers models on torch."""
