"""A model for NVIDIA's Triton Inference Server: ``python -m runtime embed --triton DIR``.

command     the command's options, and what it prints
repository  DIR/NAME: config.pbtxt, 1/model.py, 1/bundle; whole or absent
config      config.pbtxt, written and, as the server hands it over, read
tensors     what a request may hold and a response holds
asked       request -> what an LLM can be asked
replies     what comes of it -> responses, sent by a thread of their own
model       initialize, execute, finalize
api         the part of ``triton_python_backend_utils`` that is used
"""
