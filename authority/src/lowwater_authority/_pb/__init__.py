"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 d75111808b1876c1509c2629360ac795d91e3f4a1b993e5b9f15064c03ec4dc0
"""
