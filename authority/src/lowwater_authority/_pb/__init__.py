"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 d4a4f667d4aced32d7360f7e6e484a68a70cd86164658b452757bbbe9a72bfb1
"""
