"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 227ae759c1a703d73d2c572e0451c2b03eed3abfe4bd8356766b91d029495506
"""
