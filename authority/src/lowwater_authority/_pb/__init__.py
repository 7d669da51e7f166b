"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 a5e1daf026057ff14675971e1d61f3d4a7a4941ba26eac33cb684e8f8283c32d
"""
