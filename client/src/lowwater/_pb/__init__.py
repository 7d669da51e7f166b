"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 9db47f844c044898d3f69b50e4ccd4e936c0fea66e39e66d968b579bb4eeed86
"""
