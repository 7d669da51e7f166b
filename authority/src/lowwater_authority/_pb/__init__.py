"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 5da233701cbd5efdbe1aa979d0fbd7a91d56540782ea62ea66be0956c96c2898
"""
