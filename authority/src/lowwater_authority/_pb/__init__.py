"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 34cc10debe3d5305854a37b33b7fc453a8c9ce7c9545b36600d7d3df6573ace1
"""
