"""The command line: ``python -m runtime generate | compare | doctor | trace``."""
