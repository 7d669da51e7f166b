"""Generated from proto/lowwater/regions/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 37e6ea1e7595191a12d0be70739b35d8838aa8f5eab9c8e92c4bb0f139316480
"""
