"""Generated from proto/lowwater/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 414712b86026353abbab806f476f5f23a4f6d233e92f27a470436c8700056c17
"""
