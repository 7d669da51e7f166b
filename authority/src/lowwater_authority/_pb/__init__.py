"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 383715e0ffefa17578010a2e67d09e4c21b42be1d540d314027e594b6264f44b
"""
