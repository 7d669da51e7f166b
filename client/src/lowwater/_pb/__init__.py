"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 888f0b13eaa0ac5947bfd4df0e8326d5ca8cf3c52ce1fdacf416ec52f8bc8077
"""
