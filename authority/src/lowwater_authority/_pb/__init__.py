"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 2082122a483d34939a8c16a9be7e3068a3c946793b7875a21435d410f38767ff
"""
