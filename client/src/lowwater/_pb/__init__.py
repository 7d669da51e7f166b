"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 2c523c3eabdb95570670a9e0c21afa497457e5dfd99497ce4b46fba77003e53b
"""
