"""Generated from proto/lowwater/regions/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 a505cbcad37bad7f16ef17955bab33206e3069aa52716e60c6b71414ee62a033
"""
