#include "server/sandbox/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#define F_OFD_SETLKW 38
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41 /* names of mappings */
#endif
#define INFINIBAND_IOCTLS 0x1b00u /* those of verbs */
#define NAMESPACES                                                                                 \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)
#define KIND 0xfu /* of a socket's type, without its flags */
#define EXACTLY UINT32_MAX

/* The calls that the filter allows. Any other call fails with ENOSYS, as if the kernel did not have
 * it, so that a library that tries a newer one does without. The list has names, since libseccomp
 * does not know all of them everywhere. */
static const char *const allowed[] = {
    /* memory */
    "brk",
    "get_mempolicy",
    "madvise",
    "mbind",
    "membarrier",
    "memfd_create",
    "mincore",
    "mlock",
    "mlock2",
    "mlockall",
    "mmap",
    "mprotect",
    "mremap",
    "msync",
    "munlock",
    "munlockall",
    "munmap",
    "set_mempolicy",
    /* files, which are opened by those who may; the socket's name goes at the end, and the names of
     * libfabric's shm provider */
    "access",
    "close",
    "close_range",
    "dup",
    "dup2",
    "dup3",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fallocate",
    "fdatasync",
    "flock",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getcwd",
    "getdents",
    "getdents64",
    "lseek",
    "lstat",
    "newfstatat",
    "open",
    "openat",
    "pipe",
    "pipe2",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readlink",
    "readlinkat",
    "readv",
    "stat",
    "statfs",
    "statx",
    "unlink",
    "unlinkat",
    "write",
    "writev",
    /* sockets */
    "accept",
    "accept4",
    "bind",
    "connect",
    "getpeername",
    "getsockname",
    "getsockopt",
    "listen",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "shutdown",
    /* waiting */
    "clock_nanosleep",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd",
    "eventfd2",
    "futex",
    "nanosleep",
    "poll",
    "ppoll",
    "pselect6",
    "restart_syscall",
    "select",
    "signalfd",
    "signalfd4",
    "timerfd_create",
    "timerfd_gettime",
    "timerfd_settime",
    /* time, and what the process and the machine are */
    "clock_getres",
    "clock_gettime",
    "getcpu",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getpgrp",
    "getpid",
    "getppid",
    "getrandom",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "gettid",
    "gettimeofday",
    "getuid",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sysinfo",
    "time",
    "times",
    "uname",
    /* its own threads and signals */
    "arch_prctl",
    "exit",
    "exit_group",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "sigaltstack",
    /* the end of a worker's process; and this filter, once more */
    "pidfd_open",
    "seccomp",
#ifdef SHOAL_SANITIZED
    /* a tracer that looks for leaks */
    "clone",
    "fork",
    "prctl",
    "ptrace",
    "sched_setaffinity",
    "vfork",
    "wait4",
    "waitid",
#endif
};

/* The filter allows a call when the lower 32 bits of its first arguments have these values under
 * their masks; the kernel looks at no other bits of them. A mask of 0 lets anything through. */
#define ARGUMENTS 3
struct allowance {
    int call;
    struct {
        uint32_t mask, value;
    } arguments[ARGUMENTS];
};

static const struct allowance allowances[] = {
    /* a thread, but no process, and no namespace of its own; what clone3 is asked for lies in
     * memory, where no filter looks */
    {SCMP_SYS(clone), {{CLONE_THREAD | NAMESPACES, CLONE_THREAD}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_UNIX}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_INET}, {KIND, SOCK_STREAM}, {EXACTLY, 0}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_INET}, {KIND, SOCK_STREAM}, {EXACTLY, IPPROTO_TCP}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_INET}, {KIND, SOCK_DGRAM}, {EXACTLY, 0}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_INET}, {KIND, SOCK_DGRAM}, {EXACTLY, IPPROTO_UDP}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_INET6}, {KIND, SOCK_STREAM}, {EXACTLY, 0}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_INET6}, {KIND, SOCK_STREAM}, {EXACTLY, IPPROTO_TCP}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_INET6}, {KIND, SOCK_DGRAM}, {EXACTLY, 0}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_INET6}, {KIND, SOCK_DGRAM}, {EXACTLY, IPPROTO_UDP}}},
    /* which interfaces and RDMA devices there are */
    {SCMP_SYS(socket), {{EXACTLY, AF_NETLINK}, {0}, {EXACTLY, NETLINK_ROUTE}}},
    {SCMP_SYS(socket), {{EXACTLY, AF_NETLINK}, {0}, {EXACTLY, NETLINK_RDMA}}},
    /* whose a connection of this machine is (control_visitor.c) */
    {SCMP_SYS(socket), {{EXACTLY, AF_NETLINK}, {0}, {EXACTLY, NETLINK_SOCK_DIAG}}},
    {SCMP_SYS(socketpair), {{EXACTLY, AF_UNIX}}},
    /* of a socket itself, and of TCP and IP what no packet filter or route of the machine has */
    {SCMP_SYS(setsockopt), {{0}, {EXACTLY, SOL_SOCKET}}},
    {SCMP_SYS(setsockopt), {{0}, {EXACTLY, IPPROTO_TCP}, {~0xfu, 0}}}, /* up to TCP_MD5SIG */
    {SCMP_SYS(setsockopt), {{0}, {EXACTLY, IPPROTO_TCP}, {EXACTLY, TCP_USER_TIMEOUT}}},
    {SCMP_SYS(setsockopt), {{0}, {EXACTLY, IPPROTO_TCP}, {EXACTLY, TCP_NOTSENT_LOWAT}}},
    {SCMP_SYS(setsockopt), {{0}, {EXACTLY, IPPROTO_IP}, {~0x1fu, 0}}},
    {SCMP_SYS(setsockopt), {{0}, {EXACTLY, IPPROTO_IPV6}, {~0x1fu, 0}}},
    /* nothing that has a descriptor send signals (F_SETOWN, F_SETSIG, F_NOTIFY, F_SETLEASE) */
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_DUPFD}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_DUPFD_CLOEXEC}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_GETFD}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_SETFD}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_GETFL}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_SETFL}, {O_ASYNC, 0}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_GETLK}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_SETLK}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_SETLKW}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_OFD_GETLK}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_OFD_SETLK}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_OFD_SETLKW}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_SETPIPE_SZ}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_GETPIPE_SZ}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_ADD_SEALS}}},
    {SCMP_SYS(fcntl), {{0}, {EXACTLY, F_GET_SEALS}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, FIONBIO}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, FIONREAD}}},
    {SCMP_SYS(ioctl),
     {{0}, {EXACTLY, SIOCOUTQ}}}, /* what a user has not taken yet of descriptors */
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, FIOCLEX}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, TCGETS}}},
    {SCMP_SYS(ioctl), {{0}, {0xff00, INFINIBAND_IOCTLS}}},
    /* what interfaces are, and not what they are to be */
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, SIOCGIFNAME}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, SIOCGIFCONF}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, SIOCGIFFLAGS}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, SIOCGIFADDR}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, SIOCGIFNETMASK}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, SIOCGIFMTU}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, SIOCGIFHWADDR}}},
    {SCMP_SYS(ioctl), {{0}, {EXACTLY, SIOCGIFINDEX}}},
    {SCMP_SYS(prctl), {{EXACTLY, PR_SET_NAME}}},
    {SCMP_SYS(prctl), {{EXACTLY, PR_GET_NAME}}},
    {SCMP_SYS(prctl), {{EXACTLY, PR_SET_VMA}}},
    {SCMP_SYS(prctl), {{EXACTLY, PR_GET_DUMPABLE}}},
    {SCMP_SYS(prctl), {{EXACTLY, PR_SET_NO_NEW_PRIVS}}},
    {SCMP_SYS(prctl), {{EXACTLY, PR_SET_SECCOMP}}},
    {SCMP_SYS(prctl), {{EXACTLY, PR_GET_SECCOMP}}},
    /* limits of its own, and the core of the thread itself */
    {SCMP_SYS(prlimit64), {{EXACTLY, 0}}},
    {SCMP_SYS(sched_setaffinity), {{EXACTLY, 0}}},
};

static int sandbox_allow_one(scmp_filter_ctx filter, const struct allowance *it)
{
    struct scmp_arg_cmp compared[ARGUMENTS];
    unsigned count = 0;
    for (unsigned i = 0; i < ARGUMENTS; i++) {
        if (it->arguments[i].mask != 0)
            compared[count++] =
                SCMP_CMP(i, SCMP_CMP_MASKED_EQ, it->arguments[i].mask, it->arguments[i].value);
    }
    int code = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, it->call, count, compared);
#ifdef SHOAL_SANITIZED
    if (code == -EEXIST || code == -EACCES) /* it is allowed altogether */
        return 0;
#endif
    return code == -EDOM ? 0 : code;
}

static int sandbox_allow(scmp_filter_ctx filter)
{
    int code = 0;
    for (size_t i = 0; code == 0 && i < sizeof(allowed) / sizeof(allowed[0]); i++) {
        int number = seccomp_syscall_resolve_name(allowed[i]);
        if (number == __NR_SCMP_ERROR)
            continue;
        code = seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 0);
        /* -EDOM: the kernel of this machine never had the call. */
        code = code == -EDOM ? 0 : code;
    }
    for (size_t i = 0; code == 0 && i < sizeof(allowances) / sizeof(allowances[0]); i++)
        code = sandbox_allow_one(filter, &allowances[i]);
    /* The daemon may signal itself: abort and raise send a signal by number. */
    struct allowance self = {SCMP_SYS(tgkill), {{EXACTLY, (uint32_t)getpid()}}};
    return code == 0 ? sandbox_allow_one(filter, &self) : code;
}

static int sandbox_load(scmp_filter_ctx filter)
{
    /* All threads, or none. */
    int code = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    /* Kernels before 5.16 slow every load and store of a filtered process, against a leak between
     * parts of one process that do not trust each other. The daemon has none, and sums. */
    if (code == 0)
        code = seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
    /* The kernel keeps no map of the calls that are always allowed, so level 2 looks each call up
     * in a tree. */
    if (code == 0)
        code = seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (code == 0)
        code = sandbox_allow(filter);
    return code == 0 ? seccomp_load(filter) : code;
}

int sandbox_enter(struct error *error)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
    if (!filter)
        return error_set(error, ERR_MEMORY, "no memory for a filter of system calls");
    int code = sandbox_load(filter);
    seccomp_release(filter);
    if (code < 0)
        return error_set(error, ERR_UNSUPPORTED, "a filter of system calls (seccomp): %s",
                         strerror(-code));
    return 0;
}
