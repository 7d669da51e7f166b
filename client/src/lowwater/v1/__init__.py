"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 ddd0f46446ffc1b2c8110391c479f3b235fafc73b75e5ba794c0a72667ce1a6b
"""
