"""Generated from proto/lowwater/regions/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 5f46ac60621b7df8ee111774d91e0860ed7adbe547c63634e60566f2ede8a7d0
"""
