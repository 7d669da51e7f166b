"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 ff44a112fecc1e4b48fc497b309cc18dd09bd67e0192cd2d6f326af3460cb8ae
"""
