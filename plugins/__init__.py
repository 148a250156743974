"""The ssd:: operators: one meaning each, in every form an engine can run (floor 1)."""
