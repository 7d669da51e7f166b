"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 624cde1a4892f3065e5dbe0cc6b6d8bbed7841a9d7f121439bf8ac503b560ffa
"""
