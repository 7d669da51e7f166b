"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 402c7fca9edee172145ba45d20f96b6243456cdedd75b2c9c0233594d8ea3c54
"""
