"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 97965e0f0fedad391987781fd5e7238305ebb9cf0d43056e45f918edbd884d01
"""
