"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 6f67d7ca3af1c45d08ae796d21609d364c365bfae75011c3ea294daaee0bca66
"""
