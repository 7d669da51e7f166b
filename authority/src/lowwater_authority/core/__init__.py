"""The pure core: state machines with no I/O, no clock, no asyncio."""
