"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 f679062aca32d7d69bbe2f9fe066ed7ed193145fb8efb497c81a5270c70bacdf
"""
