/* A CUDA driver for tests of the sandbox. As soon as a worker loads it, it tries what an attacker would who can run code there, and prints
 * one line with the outcome of each attempt: 0, or the number of the error. It offers one GPU, which cannot be used. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/openat2.h>
#include <linux/perf_event.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static char line[4096];

static void say(const char *attempt, int failed) {
    size_t used = strlen(line);
    snprintf(line + used, sizeof line - used, " %s=%d", attempt, failed ? errno : 0);
}

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value ? value : "/nowhere";
}

static void try_open(const char *attempt, const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0600);
    say(attempt, fd < 0);
    if (fd >= 0) close(fd);
}

static void try_proc(const char *attempt, int pid, const char *file, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    try_open(attempt, path, flags);
}

static void try_connect(const char *attempt, int family, int type, const void *address, socklen_t length) {
    int fd = socket(family, type | SOCK_CLOEXEC, 0);
    say(attempt, fd < 0 || connect(fd, address, length) != 0);
    if (fd >= 0) close(fd);
}

static void try_unix(const char *attempt, const char *name, int without_file) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path + without_file, sizeof to.sun_path - without_file, "%s", name);
    try_connect(attempt, AF_UNIX, SOCK_STREAM, &to, offsetof(struct sockaddr_un, sun_path) + without_file + strlen(name));
}

static void *nothing(void *argument) { return argument; }

static void *nothing_for_long(void *argument) { return sleep(1000), argument; }

__attribute__((constructor)) static void attack(void) {
    int victim = atoi(setting("SOFTGPU_TRY_VICTIM")), parent = getppid();
    char word[8] = {0}, path[512];
    struct iovec here = {word, sizeof word};
    struct sockaddr_in tcp = {.sin_family = AF_INET, .sin_port = htons(atoi(setting("SOFTGPU_TRY_PORT"))), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in any = {.sin_family = AF_INET};
    union bpf_attr map = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
    struct perf_event_attr perf = {.type = PERF_TYPE_SOFTWARE, .size = sizeof perf, .exclude_kernel = 1};
    pthread_t thread;
    struct f_owner_ex owner = {F_OWNER_PID, victim};
    struct file_handle *handle = calloc(1, sizeof *handle + MAX_HANDLE_SZ);
    int fd, pair[2], mount_id;
    /* This ends the process in a sandbox. */
    if (getenv("SOFTGPU_TRY_32_BITS")) __asm__ volatile("int $0x80" : "=a"(fd) : "a"(20) : "memory");
    /* Files. */
    try_open("token", setting("SOFTGPU_TRY_TOKEN"), O_RDONLY);
    try_open("tokens", setting("SOFTGPU_TRY_TOKENS"), O_RDONLY);
    try_open("certificate", setting("SOFTGPU_TRY_CERTIFICATE"), O_RDONLY);
    try_open("home", setting("SOFTGPU_TRY_HOME"), O_RDONLY);
    try_open("list", setting("SOFTGPU_TRY_DIRECTORY"), O_RDONLY | O_DIRECTORY);
    snprintf(path, sizeof path, "%s/left-by-a-worker", setting("SOFTGPU_TRY_DIRECTORY"));
    try_open("create", path, O_WRONLY | O_CREAT);
    say("chmod", chmod(setting("SOFTGPU_TRY_TOKEN"), 0600) != 0);
    say("chown", chown(setting("SOFTGPU_TRY_HOME"), geteuid(), getegid()) != 0);
    say("times", utimensat(AT_FDCWD, setting("SOFTGPU_TRY_HOME"), NULL, 0) != 0);
    say("attribute", setxattr(setting("SOFTGPU_TRY_HOME"), "user.x", "x", 1, 0) != 0);
    say("truncate", truncate(setting("SOFTGPU_TRY_HOME"), 3) != 0);
    try_open("cut", setting("SOFTGPU_TRY_HOME"), O_RDONLY | O_TRUNC);
    say("openat2", syscall(SYS_openat2, AT_FDCWD, setting("SOFTGPU_TRY_HOME"), &(struct open_how){.flags = O_RDONLY}, sizeof(struct open_how)) < 0);
    if (handle) handle->handle_bytes = MAX_HANDLE_SZ;
    say("file-handle", name_to_handle_at(AT_FDCWD, setting("SOFTGPU_TRY_HOME"), handle, &mount_id, 0) != 0);
    try_open("terminal", "/dev/ptmx", O_RDWR | O_NOCTTY);
    try_open("shadow", "/etc/shadow", O_RDONLY);
    try_open("sysctl", "/proc/sys/kernel/core_pattern", O_WRONLY);
    snprintf(path, sizeof path, "%s/left-by-a-worker", setting("CUDA_CACHE_PATH"));
    try_open("cache", path, O_WRONLY | O_CREAT);
    /* Processes. */
    say("ptrace", ptrace(PTRACE_SEIZE, victim, 0, 0) != 0);
    say("process_vm_readv", process_vm_readv(victim, &here, 1, &here, 1, 0) < 0);
    say("signal", kill(victim, 0) != 0);
    say("signal-server", kill(parent, 0) != 0);
    say("thread-signal", syscall(SYS_tkill, victim, 0) != 0);
    say("queued-signal", syscall(SYS_rt_sigqueueinfo, victim, 0, &(siginfo_t){.si_code = SI_QUEUE}) != 0);
    say("process-descriptor", (fd = syscall(SYS_pidfd_open, victim, 0)) < 0);
    if (fd >= 0) close(fd);
    say("pages", syscall(SYS_move_pages, victim, 0, NULL, NULL, NULL, 0) != 0);
    /* A descriptor that becomes ready sends a signal to whom it names. */
    if (pipe2(pair, O_CLOEXEC) == 0) {
        say("descriptor-owner", fcntl(pair[0], F_SETOWN, victim) != 0);
        say("descriptor-owner-ex", fcntl(pair[0], F_SETOWN_EX, &owner) != 0);
        say("descriptor-signal", fcntl(pair[0], F_SETSIG, SIGKILL) != 0);
        close(pair[0]);
        close(pair[1]);
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0) {
        say("socket-owner", ioctl(pair[0], FIOSETOWN, &victim) != 0);
        say("socket-group", ioctl(pair[0], SIOCSPGRP, &victim) != 0);
        close(pair[0]);
        close(pair[1]);
    }
    say("prlimit", prlimit(victim, RLIMIT_NOFILE, NULL, NULL) != 0);
    try_proc("mem", victim, "mem", O_RDWR);
    try_proc("environ", victim, "environ", O_RDONLY);
    try_proc("descriptors", victim, "fd/0", O_RDONLY);
    try_proc("mem-server", parent, "mem", O_RDWR);
    try_proc("environ-server", parent, "environ", O_RDONLY);
    say("fork", (fd = fork()) < 0);
    if (fd == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    if (fd > 0) waitpid(fd, NULL, 0);
    /* Where it works it replaces this process, so only where a new one cannot be had. */
    if (fd < 0) say("execve", execl("/bin/true", "true", (char *)NULL) != 0);
    /* The network, and sockets. */
    try_unix("unix", setting("SOFTGPU_TRY_UNIX"), 0);
    try_unix("unix-abstract", setting("SOFTGPU_TRY_ABSTRACT"), 1);
    try_connect("tcp", AF_INET, SOCK_STREAM, &tcp, sizeof tcp);
    try_connect("udp", AF_INET, SOCK_DGRAM, &tcp, sizeof tcp);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    say("tcp-listen", fd < 0 || bind(fd, (void *)&any, sizeof any) != 0 || listen(fd, 1) != 0);
    if (fd >= 0) close(fd);
    say("unix-datagrams", socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) != 0);
    say("packets", (fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0)) < 0);
    if (fd >= 0) close(fd);
    /* The kernel. */
    say("unshare", unshare(CLONE_NEWUSER) != 0);
    say("mount", mount("none", "/mnt", "tmpfs", 0, NULL) != 0);
    say("keyctl", syscall(SYS_keyctl, 0, -3, 0) < 0);
    say("bpf", syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map) < 0);
    say("perf", syscall(SYS_perf_event_open, &perf, 0, -1, -1, 0) < 0);
    say("io_uring", syscall(SYS_io_uring_setup, 0, NULL) < 0);
    say("shm", shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600) < 0);
    say("semaphores", semget(IPC_PRIVATE, 1, IPC_CREAT | 0600) < 0);
    say("messages", msgget(IPC_PRIVATE, IPC_CREAT | 0600) < 0);
    say("queue", syscall(SYS_mq_open, "mrcuda-sandbox-test", O_RDWR | O_CREAT, 0600, NULL) < 0);
    syscall(SYS_mq_unlink, "mrcuda-sandbox-test");
    say("namespace", setns(-1, 0) != 0);
    say("clone3", syscall(SYS_clone3, NULL, 0) < 0);
    say("x32", syscall(0x40000000 | SYS_getpid) < 0);
    /* What a driver needs. */
    try_open("may-null", "/dev/null", O_RDWR);
    try_open("may-urandom", "/dev/urandom", O_RDONLY);
    try_open("may-maps", "/proc/self/maps", O_RDONLY);
    try_open("may-pagemap", "/proc/self/pagemap", O_RDONLY);
    try_open("may-cpuinfo", "/proc/cpuinfo", O_RDONLY);
    try_open("may-sysfs", "/sys/devices/system/cpu/online", O_RDONLY);
    try_open("may-linker-cache", "/etc/ld.so.cache", O_RDONLY);
    try_open("may-usr", "/usr", O_RDONLY | O_DIRECTORY);
    say("may-memfd", (fd = memfd_create("x", MFD_CLOEXEC)) < 0);
    say("may-shared-memory", (fd = shm_open("/mrcuda-sandbox-test", O_RDWR | O_CREAT, 0600)) < 0 || shm_unlink("/mrcuda-sandbox-test") != 0);
    say("may-thread", (errno = pthread_create(&thread, NULL, nothing, NULL)) != 0 || pthread_join(thread, NULL) != 0);
    say("may-thread-name", (errno = pthread_create(&thread, NULL, nothing_for_long, NULL)) != 0 ||
        (errno = pthread_setname_np(thread, "named")) != 0);
    say("may-thread-signal", pthread_kill(pthread_self(), 0) != 0);
    say("may-userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC | 1) < 0);
    /* As NVIDIA's driver does. */
    say("may-listen-by-name", (fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0 ||
        bind(fd, (void *)&(struct sockaddr_un){.sun_family = AF_UNIX}, sizeof(sa_family_t)) != 0 || listen(fd, 1) != 0);
    if (fd >= 0) close(fd);
    say("may-pair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0);
    fprintf(stderr, "attempts%s cache-disabled=%s\n", line, setting("CUDA_CACHE_DISABLE"));
}

int cuInit(unsigned flags) { return (void)flags, 0; }

int cuDeviceGetCount(int *count) { return *count = 1, 0; }

/* The server asks for it before it starts a worker. */
int cuDeviceGetUuid(char *uuid, int device) { return (void)device, memset(uuid, 1, 16), 0; }
