"""R2: engines behind one interface, ``runtime.backends.api``."""
