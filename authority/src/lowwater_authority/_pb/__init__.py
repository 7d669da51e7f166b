"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 191a4c5089eb4f779b7d1a9597dffe1339c235a0b163a42a58b9bed21728be68
"""
