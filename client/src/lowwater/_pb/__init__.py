"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 0c434f80052ba3c96c9a3bfdd7045709f24f4c88b0da42283ba73b755b1e87f9
"""
