"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 8c287f38893b63cb227c81fda45116fcb3f5491b079fafb543a87be55a8b7587
"""
