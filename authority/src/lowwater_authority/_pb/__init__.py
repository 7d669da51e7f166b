"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 55e23995a19018f43313df513732bc6ebdfe3609b4129eca62ac3b8da7828aaf
"""
