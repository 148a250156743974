"""``bench --dataset``: all modes on the same prompts, prompt by prompt, by category."""
