"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 bb9db2a5bf60287aa2acfe297216a5afdcc3c7acd20adb71876d23f040c5e4a2
"""
