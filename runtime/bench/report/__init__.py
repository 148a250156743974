"""Reports as one HTML file: no script, no network, no package beyond Python's own."""
