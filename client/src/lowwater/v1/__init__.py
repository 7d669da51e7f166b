"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 97c233eaef6e9b5849420fb12116eeabc3b285974675b697b2b2397a522c6181
"""
