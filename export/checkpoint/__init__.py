"""Source checkpoints: Hugging Face folders and GGUF files behind one interface (``api.py``)."""
