"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 d00970818d1b8ac6388615fe853749bfef5b133516af3c340876ea612c078a34
"""
