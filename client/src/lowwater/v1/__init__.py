"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 f6471cbff42952f62a5fc783984726e08b49cfc43111d5ff8a18a78fb9cefe7a
"""
