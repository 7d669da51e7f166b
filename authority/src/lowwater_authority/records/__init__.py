"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 a21056d476ef741d50000e3500c1b36f7f00ec142ca65d66ec29f934313ffa31
"""
