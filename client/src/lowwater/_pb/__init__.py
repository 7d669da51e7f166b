"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 33d6e6824c0f39e7304dad50ed7728e45043f0df7fcbeed1378302c5edfecd5c
"""
