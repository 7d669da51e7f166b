"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 2b057659571f71cafa0e3169418fdfef5e5173f1e4c8b5da8011f7eefbb9a205
"""
