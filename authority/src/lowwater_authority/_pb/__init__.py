"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 14091bcb43de44eafdc22fdc47c2e0ed3ca161f5cdf1ebe176b75546296e96ff
"""
