"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 0b19d1033a176af1c4830400022ae04faafd0b8a27c912f5760692b889600eec
"""
