"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 3300a7da6d576fe012ce3ac3fa64c9387a9f74e82c8a31a3be0575f3d75687ef
"""
