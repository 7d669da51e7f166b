"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 be4129a4bbe03d65f77c79435679f456fa86ce6179fd0ac8ec3d7db731f3125b
"""
