"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 bd16aa82b4e39abcdb434bd5dda6f03dc142a5bc8b4abce9e491396065c25d6d
"""
