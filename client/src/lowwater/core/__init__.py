"""What the client does, without network, threads or clock: states, and functions of them.

Clock and chance are passed in. The shells own the sockets and the waiting:
:mod:`lowwater._drive.threads` has threads, and holds a lock around every call into here;
:mod:`lowwater._drive.tasks` has the tasks of one event loop, and needs none.

The authority, Spark and the pipeline import these modules too. They belong to the distributions of
one version: users import from :mod:`lowwater` itself, whose names keep their meaning from release
to release.
"""
