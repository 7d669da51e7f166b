"""The client on asyncio: the channel, tasks and waiting around :mod:`lowwater._core`."""
