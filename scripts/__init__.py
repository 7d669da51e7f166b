"""What `make` runs, and what makes generated files: `python -m scripts.NAME`, from the root of the repository."""
