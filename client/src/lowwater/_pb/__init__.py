"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 0d633ad24fe61e3a693df02e736b9aeecc275150e14bc73684fc031b18e7cb4e
"""
