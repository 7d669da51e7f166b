"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 ab0cdd71f03704664adf326bc828c9797de62366188fd2c8997d7a08481b1993
"""
