"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 77467fdefb7d0815c74d9918440718b595f6631ad71fd8741788b1f7e8fca56a
"""
