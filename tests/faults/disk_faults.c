/* Faults of a disk, for the calls of a process that concern one folder. To be preloaded.

   DISK_FAULT is "KIND N FOLDER": the N-th call of the kind, and for most kinds each after it, fails.

   full       writing, creating and extending fail: no space left on device
   sync       syncing fails: input/output error
   read-only  everything that changes the folder fails: read-only file system
   error      writing and syncing fail: input/output error
   once       as full, but only the N-th call: somebody made space
   kill       the N-th call that changes the folder is not made: the process and its group end
   vanish     before the N-th call on the folder of any kind, the file DISK_FAULT_VICTIM is removed

   With N = 0 nothing fails, but the calls are counted. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, CREATE = 2, SYNC = 4, CHANGE = 8, READ = 16 };

static char kind[16], folder[PATH_MAX], victim[PATH_MAX];
static long nth, calls;

long disk_fault_calls(void) { return calls; }

__attribute__((constructor)) void disk_fault_arm(void) {
  const char *text = getenv("DISK_FAULT"), *file = getenv("DISK_FAULT_VICTIM");
  kind[0] = folder[0] = victim[0] = 0;
  calls = 0;
  if (text) sscanf(text, "%15s %ld %4095s", kind, &nth, folder);
  if (file) strncpy(victim, file, sizeof victim - 1);
}

static int inside(const char *path) {
  size_t length = strlen(folder);
  return length && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static int descriptor_inside(int file) {
  char link[64], path[PATH_MAX];
  if (!folder[0]) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return inside(path);
}

static int path_inside(int at, const char *path) {
  char start[PATH_MAX] = "", whole[2 * PATH_MAX];
  if (!folder[0] || !path) return 0;
  if (path[0] == '/') return inside(path);
  if (at == AT_FDCWD) {
    if (!getcwd(start, sizeof start)) return 0;
  } else {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, start, sizeof start - 1);
    if (length < 0) return 0;
    start[length] = 0;
  }
  snprintf(whole, sizeof whole, "%s/%s", start, path);
  return inside(whole);
}

/* Whether the call must fail, with errno set. */
static int fails(int what) {
  int matters = 0, code = ENOSPC;
  if (!strcmp(kind, "full") || !strcmp(kind, "once")) matters = what & (WRITE | CREATE);
  else if (!strcmp(kind, "sync")) matters = what & SYNC, code = EIO;
  else if (!strcmp(kind, "error")) matters = what & (WRITE | SYNC), code = EIO;
  else if (!strcmp(kind, "read-only")) matters = what & (WRITE | CREATE | CHANGE), code = EROFS;
  else if (!strcmp(kind, "kill")) matters = what & (WRITE | CREATE | SYNC | CHANGE);
  else if (!strcmp(kind, "vanish")) matters = 1;
  if (!matters) return 0;
  long number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  if (!nth || number < nth) return 0;
  if (!strcmp(kind, "vanish")) {
    int saved = errno;
    if (number == nth) unlinkat(AT_FDCWD, victim, 0);
    errno = saved;
    return 0;
  }
  if (!strcmp(kind, "kill")) {
    kill(0, SIGKILL);
    pause();
  }
  if (!strcmp(kind, "once") && number != nth) return 0;
  errno = code;
  return 1;
}

static int opening(int flags, int at, const char *path) {
  struct stat status;
  if (!path_inside(at, path)) return 0;
  if (!(flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC))) return READ;
  if ((flags & O_CREAT) && fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW)) return CREATE;
  /* Opening a file that exists changes nothing yet, but is refused where nothing may change. */
  return CHANGE;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(condition, what) \
  do { if ((condition) && fails(what)) return -1; } while (0)
#define OPEN(name)                                                   \
  int name(const char *path, int flags, ...) {                       \
    va_list rest;                                                    \
    va_start(rest, flags);                                           \
    mode_t mode = va_arg(rest, mode_t);                              \
    va_end(rest);                                                    \
    int what = opening(flags, AT_FDCWD, path);                       \
    FAIL(what, what);                                                \
    return NEXT(name)(path, flags, mode);                            \
  }
#define OPENAT(name)                                                 \
  int name(int at, const char *path, int flags, ...) {               \
    va_list rest;                                                    \
    va_start(rest, flags);                                           \
    mode_t mode = va_arg(rest, mode_t);                              \
    va_end(rest);                                                    \
    int what = opening(flags, at, path);                             \
    FAIL(what, what);                                                \
    return NEXT(name)(at, path, flags, mode);                        \
  }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *bytes, size_t count) {
  FAIL(descriptor_inside(file), WRITE);
  return NEXT(write)(file, bytes, count);
}
ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
  FAIL(descriptor_inside(file), WRITE);
  return NEXT(pwrite64)(file, bytes, count, offset);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
  FAIL(descriptor_inside(file), WRITE);
  return NEXT(writev)(file, parts, count);
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t count);
ssize_t sendfile64(int to, int from, off64_t *offset, size_t count) {
  FAIL(descriptor_inside(to), WRITE);
  return NEXT(sendfile64)(to, from, offset, count);
}
ssize_t copy_file_range(int from, off64_t *start, int to, off64_t *place, size_t count, unsigned flags) {
  FAIL(descriptor_inside(to), WRITE);
  return NEXT(copy_file_range)(from, start, to, place, count, flags);
}
int ftruncate64(int file, off64_t length) {
  struct stat status;
  int longer = !fstat(file, &status) && length > status.st_size;
  FAIL(descriptor_inside(file), longer ? WRITE : CHANGE);
  return NEXT(ftruncate64)(file, length);
}
int fsync(int file) {
  FAIL(descriptor_inside(file), SYNC);
  return NEXT(fsync)(file);
}
int fdatasync(int file) {
  FAIL(descriptor_inside(file), SYNC);
  return NEXT(fdatasync)(file);
}
int mkdir(const char *path, mode_t mode) {
  struct stat status;
  FAIL(path_inside(AT_FDCWD, path) && lstat(path, &status), CREATE);
  return NEXT(mkdir)(path, mode);
}
int symlink(const char *target, const char *path) {
  FAIL(path_inside(AT_FDCWD, path), CREATE);
  return NEXT(symlink)(target, path);
}
int link(const char *from, const char *to) {
  FAIL(path_inside(AT_FDCWD, to), CREATE);
  return NEXT(link)(from, to);
}
int rename(const char *from, const char *to) {
  FAIL(path_inside(AT_FDCWD, from) || path_inside(AT_FDCWD, to), CHANGE);
  return NEXT(rename)(from, to);
}
int renameat(int at, const char *from, int other, const char *to) {
  FAIL(path_inside(at, from) || path_inside(other, to), CHANGE);
  return NEXT(renameat)(at, from, other, to);
}
int unlink(const char *path) {
  struct stat status;
  FAIL(path_inside(AT_FDCWD, path) && !lstat(path, &status), CHANGE);
  return NEXT(unlink)(path);
}
int unlinkat(int at, const char *path, int flags) {
  FAIL(strcmp(kind, "vanish") && path_inside(at, path), CHANGE);
  return NEXT(unlinkat)(at, path, flags);
}
int rmdir(const char *path) {
  FAIL(path_inside(AT_FDCWD, path), CHANGE);
  return NEXT(rmdir)(path);
}
int chmod(const char *path, mode_t mode) {
  FAIL(path_inside(AT_FDCWD, path), CHANGE);
  return NEXT(chmod)(path, mode);
}
int fchmod(int file, mode_t mode) {
  FAIL(descriptor_inside(file), CHANGE);
  return NEXT(fchmod)(file, mode);
}
