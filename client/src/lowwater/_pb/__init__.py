"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 3a21ff5c8109910398369259563ee6c471625bb760016588ded77bc1079466e0
"""
