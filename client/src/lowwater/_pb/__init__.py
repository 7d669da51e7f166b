"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 cd48486031f55befd50a4cc7fdece58d047e1701a24d3e27c10b5088ff1c7b41
"""
