"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 9ed25f820c95a7b9ce2eee9dcf7d4e16573ae75e9ca3f44483a1c9f68baf8b70
"""
