"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 cd42aff1a5b13ccd0200bec15316463db6f90248a3ef3ec048962e9466e0488e
"""
