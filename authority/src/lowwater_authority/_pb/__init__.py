"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 2c036bc53d31f5baf92eb15b794ca838e283a6860390902601da1a364b295735
"""
