"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 565b0b25e7177b3fd0ca6c2af172b99c4ed04dcf061ed6276244e7df1fc55ee4
"""
