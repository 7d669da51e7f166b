"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 d989619df6d150d4ab15ba129dcd5ea2d661bf1c13c1e5eac4405076e65e0fae
"""
