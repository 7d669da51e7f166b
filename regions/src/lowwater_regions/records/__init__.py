"""Generated from proto/lowwater/regions/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 c8c22efe1c69baa555a7188dbe111c56d26a66307e76ec59d91169685c8f9e1e
"""
