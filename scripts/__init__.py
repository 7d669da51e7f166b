"""Commands of `make` and generators of files: `python -m scripts.NAME`, in the root folder."""
