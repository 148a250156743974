"""ssd-trt inside of other programs: a library for C and C++ (``include/ssd.h``), and a model
repository for Triton.

    csrc/        the functions of ssd.h: pointers and sizes, and the start of Python
    bridge.py    what they ask of Python; beside it models, texts and options
    build.py     compiles both into a shared library (``python -m runtime embed --out DIR``)
"""

ABI_VERSION = 1
"""``SSD_ABI_VERSION`` of ssd.h: a library starts with no other ssd-trt than one of its own."""
