"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 a66a51d00ee87601e849826d3bbf774599b10c3c1dd9cbbad8c279e7f404caa8
"""
