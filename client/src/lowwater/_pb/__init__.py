"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 b76811f3b36a9c27b20bcfcc76a3e0f4f7e8565e9a18184c1be7d448b05e2950
"""
