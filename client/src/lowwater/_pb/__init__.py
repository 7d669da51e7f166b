"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 03f3f088cb8201d089d1d3f9a2c7c89c6dd1e2c6c42da9e6385ae03a69b8f976
"""
