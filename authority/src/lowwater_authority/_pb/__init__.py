"""Generated from proto/lowwater/journal/v1 by scripts/generate_protos.py: do not edit, run `make gen`.

Made from: sha256 6d5dc93eb6471d24f5bf3eff2367dfd45a91a53818eef8e274478cff3c65caaf
"""
