"""The low-watermark authority: keeps, journals and broadcasts watermarks."""
