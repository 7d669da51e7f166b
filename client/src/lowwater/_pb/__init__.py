"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 c6ff4778e17c4e9fcb3baed640cfcd4e6a9299a7073815f01e682d8d8997a056
"""
