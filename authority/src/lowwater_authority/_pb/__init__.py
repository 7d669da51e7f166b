"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 b20387591de98f56e30061f6273d3c35c0d7ac7c55ed9654acbef1d13af3a75f
"""
