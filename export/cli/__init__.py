"""``python -m export fetch | build | inspect | verify | bench | distill | cache``."""
