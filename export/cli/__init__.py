"""The command line: ``python -m export fetch | build | inspect | verify | distill``."""
