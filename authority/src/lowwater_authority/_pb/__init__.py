"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 0f819bb5c4ac219141b9e6c27b75c5d08f09cd8bb3eedf4e3d523684bad2a73a
"""
