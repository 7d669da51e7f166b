/* What a process does to the files of one directory, in order, and a disk that fails when it is told to.
 *
 * Preloaded (LD_PRELOAD), it wraps the system calls that write and sync files. Each successful one under
 * LOWWATER_TRACE_DIR is a line of LOWWATER_TRACE: W (write) or S (sync; of a directory, too), and the path. The
 * tracing process appends marks of its own to the same file. disk_fail("sync" or "write", code) makes the next such
 * call on a write-ahead log fail with that errno: a sync before it reaches the disk, a write after its first half.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static const char *directory;
static char failing_call;
static int failing_code;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LOWWATER_TRACE");
    directory = getenv("LOWWATER_TRACE_DIR");
    if (path != NULL && directory != NULL)
        trace = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

void disk_fail(const char *call, int code) {
    failing_code = code;
    failing_call = call[0];
}

/* Whether the path is one to trace. */
static int ours(const char *path) { return trace >= 0 && strncmp(path, directory, strlen(directory)) == 0; }

static int path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return ours(path);
}

static void note(char call, const char *path) {
    char line[4200];
    int size = snprintf(line, sizeof line, "%c %s\n", call, path);
    if (syscall(SYS_write, trace, line, size) != size)
        abort(); /* a trace with a hole proves nothing */
}

/* Whether this call on this file is the one that has to fail. */
static int fails(char call, const char *path) {
    size_t length = strlen(path);
    if (failing_call != call || length < 4 || strcmp(path + length - 4, "-wal") != 0)
        return 0;
    failing_call = 0;
    errno = failing_code;
    return 1;
}

static ssize_t traced_write(int fd, const void *data, size_t size, off_t offset) {
    char path[4096];
    if (!path_of(fd, path, sizeof path))
        return syscall(SYS_pwrite64, fd, data, size, offset);
    pthread_mutex_lock(&lock);
    int failed = fails('w', path);
    ssize_t done = syscall(SYS_pwrite64, fd, data, failed ? size / 2 : size, offset);
    if (done > 0)
        note('W', path);
    if (failed) {
        errno = failing_code;
        done = -1;
    }
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return traced_write(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return traced_write(fd, data, size, offset); }

ssize_t write(int fd, const void *data, size_t size) {
    char path[4096];
    if (!path_of(fd, path, sizeof path))
        return syscall(SYS_write, fd, data, size);
    off_t offset = lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    ssize_t done = traced_write(fd, data, size, offset);
    if (done > 0)
        lseek(fd, offset + done, SEEK_SET);
    return done;
}

static int traced_sync(int fd, long number) {
    char path[4096];
    if (!path_of(fd, path, sizeof path))
        return syscall(number, fd);
    pthread_mutex_lock(&lock);
    int done = fails('s', path) ? -1 : syscall(number, fd);
    if (done == 0)
        note('S', path);
    pthread_mutex_unlock(&lock);
    return done;
}

int fsync(int fd) { return traced_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return traced_sync(fd, SYS_fdatasync); }
