/* SPDX-License-Identifier: Apache-2.0
   Makes the n-th call of one kind fail as the system would: `write` to a file (no space left), `fsync` (an I/O
   error), `rename` (no permission), `create` of a file (no permission) and `mmap` (no memory); of `thread` (no more of
   them) all from the n-th on. Loaded before a program (LD_PRELOAD), it takes its orders from the file named by KVSPAN_FAIL_CALLS, which all
   processes that the program starts share; linked into a test, from kvspan_fail_call(). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* failures.py and fail_calls.h write and read this. */
struct orders {
  char kind[16];      /* which calls count; none: "" */
  atomic_long at;     /* the call that fails, from 1 on; 0: none */
  atomic_long calls;  /* so far */
};

static struct orders own;
static struct orders* orders = &own;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void begin(void) {
  const char* path = getenv("KVSPAN_FAIL_CALLS");
  if (path == NULL) return;
  const int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void* at = (void*)syscall(SYS_mmap, NULL, sizeof(struct orders), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at != MAP_FAILED) orders = at;
}

EXPORT void kvspan_fail_call(const char* kind, long at) {
  atomic_store(&own.at, 0);
  strncpy(own.kind, kind, sizeof own.kind - 1);
  atomic_store(&own.calls, 0);
  atomic_store(&own.at, at);
}

EXPORT long kvspan_counted_calls(void) {
  return atomic_load(&own.calls);
}

static int fails(const char* kind) {
  pthread_once(&once, begin);
  if (strcmp(kind, orders->kind) != 0) return 0;
  const long call = atomic_fetch_add(&orders->calls, 1) + 1, at = atomic_load(&orders->at);
  return at != 0 && (strcmp(kind, "thread") == 0 ? call >= at : call == at);
}

static int is_file(int descriptor) {
  struct stat info;
  return fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
}

EXPORT ssize_t write(int file, const void* bytes, size_t size) {
  if (is_file(file) && fails("write")) {
    errno = ENOSPC;
    return -1;
  }
  return syscall(SYS_write, file, bytes, size);
}

EXPORT ssize_t writev(int file, const struct iovec* pieces, int count) {
  if (is_file(file) && fails("write")) {
    errno = ENOSPC;
    return -1;
  }
  return syscall(SYS_writev, file, pieces, count);
}

EXPORT int fsync(int file) {
  if (fails("fsync")) {
    errno = EIO;
    return -1;
  }
  return (int)syscall(SYS_fsync, file);
}

EXPORT int rename(const char* from, const char* to) {
  if (fails("rename")) {
    errno = EACCES;
    return -1;
  }
  return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

EXPORT int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  if (fails("rename")) {
    errno = EACCES;
    return -1;
  }
  return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
}

static int open_at(int folder, const char* path, int flags, mode_t mode) {
  if ((flags & O_CREAT) != 0 && fails("create")) {
    errno = EACCES;
    return -1;
  }
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}

static mode_t mode_of(int flags, va_list more) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
}

#define OPEN(name)                                       \
  EXPORT int name(const char* path, int flags, ...) {    \
    va_list more;                                        \
    va_start(more, flags);                               \
    const mode_t mode = mode_of(flags, more);            \
    va_end(more);                                        \
    return open_at(AT_FDCWD, path, flags, mode);         \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                             \
  EXPORT int name(int folder, const char* path, int flags, ...) { \
    va_list more;                                                \
    va_start(more, flags);                                       \
    const mode_t mode = mode_of(flags, more);                    \
    va_end(more);                                                \
    return open_at(folder, path, flags, mode);                   \
  }
OPENAT(openat)
OPENAT(openat64)

#define MMAP(name)                                                                             \
  EXPORT void* name(void* at, size_t size, int protection, int flags, int file, off_t offset) { \
    if (fails("mmap")) {                                                                       \
      errno = ENOMEM;                                                                          \
      return MAP_FAILED;                                                                       \
    }                                                                                          \
    return (void*)syscall(SYS_mmap, at, size, protection, flags, file, offset);                \
  }
MMAP(mmap)
MMAP(mmap64)

EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* with) {
  int (*next)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (fails("thread")) return EAGAIN;
  void* const found = dlsym(RTLD_NEXT, "pthread_create");
  memcpy(&next, &found, sizeof next);  /* ISO C converts no pointer to data to one to a function */
  return next(thread, attributes, run, with);
}
