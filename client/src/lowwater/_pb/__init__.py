"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 0786bf001da7656a64de931773003b3aa05773ab717153f406fcb671219d991a
"""
