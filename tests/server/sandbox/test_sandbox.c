/* Calls that a process may still make when it is in the sandbox, and calls that it may not. Each
 * case is a process of its own, for there is no way out. */
#include "server/sandbox/sandbox.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/suite.h"

enum { HELD = 0, DID_NOT_HOLD = 1, NO_SANDBOX = 2 };

/* Runs the function in a process that is in the sandbox; what it returns. */
static int inside(int (*function)(void))
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        struct error error = {0};
        _exit(sandbox_enter(&error) == 0 ? function() : NO_SANDBOX);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* Return HELD if the call was refused as if the kernel did not have it. */
static int refused(long result)
{
    return result == -1 && errno == ENOSYS ? HELD : DID_NOT_HOLD;
}

/* --- what is denied, by kinds ------------------------------------------------------------------
 *
 * Stand-ins for what is known when a case runs. */
enum {
    OTHER = 0x7f000001, /* the number of a process that is not this one */
    SELF,               /* this one's own */
    SOCKET,             /* a descriptor of a socket */
    MEMORY,             /* an address of some bytes, all zero */
    STACK               /* the end of some memory */
};

#define THREAD (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)
#define WAKE_UP 0x541e /* FIONREAD is 0x541b: a neighbour */

static const struct {
    const char *kind;
    long call;
    long arguments[5];
    bool tracer; /* builds with a sanitizer may, for their tracer */
} denied[] = {
    {"starts a program", SYS_execve, {MEMORY, MEMORY, MEMORY}, false},
    {"starts a program", SYS_execveat, {SOCKET, MEMORY, MEMORY, MEMORY}, false},
    {"makes a process", SYS_fork, {0}, true},
    {"makes a process", SYS_clone, {SIGCHLD}, true},
    {"makes a process", SYS_clone3, {MEMORY, 64}, false},
    {"makes a namespace", SYS_clone, {THREAD | CLONE_NEWNET, STACK}, true},
    {"makes a namespace", SYS_clone, {THREAD | CLONE_NEWUTS, STACK}, true},
    {"makes a namespace", SYS_unshare, {CLONE_NEWNET}, false},
    {"makes a namespace", SYS_setns, {SOCKET, 0}, false},
    {"looks into a process", SYS_process_vm_readv, {OTHER, MEMORY, 1, MEMORY, 1}, false},
    {"looks into a process", SYS_process_vm_writev, {OTHER, MEMORY, 1, MEMORY, 1}, false},
    {"looks into a process", SYS_ptrace, {PTRACE_TRACEME}, true},
    {"looks into a process", SYS_kcmp, {OTHER, SELF, 0}, false},
    {"looks into a process", SYS_pidfd_getfd, {SOCKET, 0, 0}, false},
    {"signals a process", SYS_kill, {OTHER, 0}, false},
    {"signals a process", SYS_kill, {SELF, 0}, false},
    {"signals a process", SYS_tkill, {OTHER, 0}, false},
    {"signals a process", SYS_tgkill, {OTHER, OTHER, 0}, false},
    {"signals a process", SYS_rt_sigqueueinfo, {OTHER, 0, MEMORY}, false},
    {"signals a process", SYS_rt_tgsigqueueinfo, {OTHER, OTHER, 0, MEMORY}, false},
    {"signals a process", SYS_pidfd_send_signal, {SOCKET, 0, 0, 0}, false},
    {"signals a process", SYS_timer_create, {CLOCK_MONOTONIC, MEMORY, MEMORY}, false},
    {"signals by a descriptor", SYS_fcntl, {SOCKET, F_SETOWN, OTHER}, false},
    {"signals by a descriptor", SYS_fcntl, {SOCKET, F_SETOWN_EX, MEMORY}, false},
    {"signals by a descriptor", SYS_fcntl, {SOCKET, F_SETSIG, SIGKILL}, false},
    {"signals by a descriptor", SYS_fcntl, {SOCKET, F_SETLEASE, F_RDLCK}, false},
    {"signals by a descriptor", SYS_fcntl, {SOCKET, F_NOTIFY, DN_CREATE}, false},
    {"signals by a descriptor", SYS_fcntl, {SOCKET, F_SETFL, O_ASYNC | O_NONBLOCK}, false},
    {"signals by a descriptor", SYS_ioctl, {SOCKET, FIOSETOWN, MEMORY}, false},
    {"signals by a descriptor", SYS_ioctl, {SOCKET, SIOCSPGRP, MEMORY}, false},
    {"signals by a descriptor", SYS_ioctl, {SOCKET, FIOASYNC, MEMORY}, false},
    {"types into a terminal", SYS_ioctl, {SOCKET, TIOCSTI, MEMORY}, false},
    {"types into a terminal", SYS_ioctl, {SOCKET, TIOCLINUX, MEMORY}, false},
    {"any ioctl", SYS_ioctl, {SOCKET, WAKE_UP, MEMORY}, false},
    {"sets priorities", SYS_setpriority, {PRIO_PROCESS, OTHER, 5}, false},
    {"sets priorities", SYS_setpriority, {PRIO_PROCESS, 0, 5}, false},
    {"sets priorities", SYS_sched_setscheduler, {OTHER, SCHED_OTHER, MEMORY}, false},
    {"sets priorities", SYS_sched_setparam, {OTHER, MEMORY}, false},
    {"sets priorities", SYS_sched_setattr, {OTHER, MEMORY, 0}, false},
    {"sets priorities", SYS_ioprio_set, {1, OTHER, 0}, false},
    {"sets cores, memory, limits", SYS_sched_setaffinity, {OTHER, 8, MEMORY}, true},
    {"sets cores, memory, limits", SYS_migrate_pages, {OTHER, 0, MEMORY, MEMORY}, false},
    {"sets cores, memory, limits", SYS_move_pages, {OTHER, 0, MEMORY, MEMORY, MEMORY}, false},
    {"sets cores, memory, limits", SYS_process_madvise, {SOCKET, MEMORY, 1, MADV_COLD}, false},
    {"sets cores, memory, limits", SYS_prlimit64, {OTHER, RLIMIT_NOFILE, 0, MEMORY}, false},
    {"tells others of itself", SYS_prctl, {PR_SET_PTRACER, PR_SET_PTRACER_ANY}, true},
    {"tells others of itself", SYS_prctl, {PR_SET_CHILD_SUBREAPER, 1}, true},
    {"tells others of itself", SYS_prctl, {PR_SET_DUMPABLE, 1}, true},
    {"other sockets", SYS_socket, {AF_PACKET, SOCK_RAW, 0}, false},
    {"other sockets", SYS_socket, {AF_ALG, SOCK_SEQPACKET, 0}, false},
    {"other sockets", SYS_socket, {AF_VSOCK, SOCK_STREAM, 0}, false},
    {"other sockets", SYS_socket, {AF_KEY, SOCK_RAW, 2}, false},
    {"other sockets", SYS_socket, {AF_BLUETOOTH, SOCK_RAW, 0}, false},
    {"other sockets", SYS_socket, {AF_CAN, SOCK_RAW, 1}, false},
    {"other sockets", SYS_socket, {AF_INET, SOCK_RAW, IPPROTO_TCP}, false},
    {"other sockets", SYS_socket, {AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMPV6}, false},
    {"other sockets", SYS_socket, {AF_INET, SOCK_DGRAM, IPPROTO_ICMP}, false},
    {"other sockets", SYS_socket, {AF_INET, SOCK_STREAM, IPPROTO_SCTP}, false},
    {"other sockets", SYS_socket, {AF_NETLINK, SOCK_RAW, NETLINK_AUDIT}, false},
    {"other sockets", SYS_socket, {AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER}, false},
    {"other sockets", SYS_socketpair, {AF_INET, SOCK_STREAM, 0, MEMORY}, false},
    {"other sockets", SYS_socketpair, {AF_VSOCK, SOCK_STREAM, 0, MEMORY}, false},
    {"sets up the network", SYS_setsockopt, {SOCKET, IPPROTO_IP, 64, MEMORY, 4}, false},
    {"sets up the network", SYS_setsockopt, {SOCKET, IPPROTO_IPV6, 64, MEMORY, 4}, false},
    {"sets up the network", SYS_setsockopt, {SOCKET, IPPROTO_IP, 200, MEMORY, 4}, false},
    {"sets up the network", SYS_setsockopt, {SOCKET, IPPROTO_TCP, TCP_ULP, MEMORY, 4}, false},
    {"sets up the network", SYS_setsockopt, {SOCKET, IPPROTO_TCP, TCP_REPAIR, MEMORY, 4}, false},
    {"sets up the network", SYS_setsockopt, {SOCKET, SOL_NETLINK, 1, MEMORY, 4}, false},
    {"sets up the network", SYS_ioctl, {SOCKET, SIOCSIFFLAGS, MEMORY}, false},
    {"sets up the network", SYS_ioctl, {SOCKET, SIOCSIFADDR, MEMORY}, false},
    {"sets up the network", SYS_ioctl, {SOCKET, SIOCADDRT, MEMORY}, false},
    {"sets up the network", SYS_ioctl, {SOCKET, SIOCSIFNAME, MEMORY}, false},
    {"sets up the network", SYS_ioctl, {SOCKET, SIOCETHTOOL, MEMORY}, false},
    {"sets up the network", SYS_sethostname, {MEMORY, 0}, false},
    {"changes files", SYS_chmod, {MEMORY, 0777}, false},
    {"changes files", SYS_fchmod, {SOCKET, 0777}, false},
    {"changes files", SYS_fchmodat, {AT_FDCWD, MEMORY, 0777}, false},
    {"changes files", SYS_fchown, {SOCKET, 0, 0}, false},
    {"changes files", SYS_rename, {MEMORY, MEMORY}, false},
    {"changes files", SYS_symlink, {MEMORY, MEMORY}, false},
    {"changes files", SYS_linkat, {AT_FDCWD, MEMORY, AT_FDCWD, MEMORY, 0}, false},
    {"changes files", SYS_mknod, {MEMORY, 0600, 0}, false},
    {"changes files", SYS_setxattr, {MEMORY, MEMORY, MEMORY, 0, 0}, false},
    {"changes files", SYS_chroot, {MEMORY}, false},
    {"mounts", SYS_mount, {MEMORY, MEMORY, MEMORY, 0, 0}, false},
    {"mounts", SYS_umount2, {MEMORY, 0}, false},
    {"mounts", SYS_pivot_root, {MEMORY, MEMORY}, false},
    {"mounts", SYS_open_tree, {AT_FDCWD, MEMORY, 0}, false},
    {"becomes somebody", SYS_setuid, {0}, false},
    {"becomes somebody", SYS_setresgid, {0, 0, 0}, false},
    {"becomes somebody", SYS_setgroups, {0, MEMORY}, false},
    {"becomes somebody", SYS_capset, {MEMORY, MEMORY}, false},
    {"asks the kernel", SYS_bpf, {0, MEMORY, 0}, false},
    {"asks the kernel", SYS_io_uring_setup, {1, MEMORY}, false},
    {"asks the kernel", SYS_keyctl, {0, 0}, false},
    {"asks the kernel", SYS_userfaultfd, {0}, false},
    {"asks the kernel", SYS_perf_event_open, {MEMORY, 0, -1, -1, 0}, false},
    {"asks the kernel", SYS_finit_module, {SOCKET, MEMORY, 0}, false},
    {"asks the kernel", SYS_reboot, {0, 0, 0}, false},
    {"asks the kernel", SYS_syslog, {10, 0, 0}, false},
    {"asks the kernel", SYS_personality, {0xffffffff}, false},
    {"sets the clock", SYS_settimeofday, {MEMORY, 0}, false},
    {"sets the clock", SYS_adjtimex, {MEMORY}, false},
    {"shares memory by name", SYS_shmget, {0, 4096, 0600}, false},
    {"shares memory by name", SYS_msgget, {0, 0600}, false},
    {"shares memory by name", SYS_mq_open, {MEMORY, 0}, false},
};
#define DENIED ((int)(sizeof(denied) / sizeof(denied[0])))

static long argument_of(long stand_in, int fd)
{
    static char memory[4096];
    switch (stand_in) {
    case OTHER:
        return getppid();
    case SELF:
        return getpid();
    case SOCKET:
        return fd;
    case MEMORY:
        return (long)memory;
    case STACK:
        return (long)(memory + sizeof(memory));
    default:
        return stand_in;
    }
}

static int case_number; /* of a process */

static int call_denied(void)
{
    long a[5];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        return DID_NOT_HOLD;
    for (int i = 0; i < 5; i++)
        a[i] = argument_of(denied[case_number].arguments[i], fd);
    return refused(syscall(denied[case_number].call, a[0], a[1], a[2], a[3], a[4]));
}

/* Run the function in the sandbox and expect that it holds. */
static void expect_held(const char *test, const char *what, int (*function)(void))
{
    int result = inside(function);
    if (result == NO_SANDBOX)
        suite_skip(test, "this kernel does not filter system calls");
    else
        ck_assert_msg(result == HELD, "%s", what);
}

START_TEST(test_denied)
{
    case_number = _i;
#ifdef SHOAL_SANITIZED
    if (denied[_i].tracer)
        return;
#endif
    char what[128];
    snprintf(what, sizeof(what), "case %d passes: %s (call %ld)", _i, denied[_i].kind,
             denied[_i].call);
    expect_held("test_denied", what, call_denied);
}
END_TEST

/* Calls by the numbers of another machine's table, of which the filter knows none. */
static int another_abi(void)
{
#ifdef __x86_64__
    long result = (int)syscall(0x40000000 | SYS_getpid); /* x32 */
    return refused(result);
#else
    return HELD;
#endif
}

static int old_abi(void)
{
#ifdef __x86_64__
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20L /* getpid */) : "memory", "r8", "r9");
    return result < 0 ? HELD : DID_NOT_HOLD;
#else
    return HELD;
#endif
}

START_TEST(test_other_tables_of_calls)
{
    int (*const functions[])(void) = {another_abi, old_abi};
    struct error error = {0};
    int status;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(sandbox_enter(&error) == 0 ? functions[_i]() : HELD);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    /* The process is ended, if it gets no error. */
    ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == HELD);
}
END_TEST

/* Whatever kernels will have. */
static int newer_calls(void)
{
    for (long number = 434; number < 700; number++)
        if (number != SYS_pidfd_open && number != 436 /* close_range */ &&
            number != 439 /* faccessat2 */ && number != 441 /* epoll_pwait2 */ &&
            refused(syscall(number, -1, -1, -1, -1, -1, -1)))
            return DID_NOT_HOLD;
    return HELD;
}

/* Signal this process itself, as abort does. */
static int signalling_itself(void)
{
    struct rlimit limit;
    return raise(SIGURG) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 ? HELD : DID_NOT_HOLD;
}

static void *thread_main(void *argument)
{
    return argument;
}

/* Ask the system for what a daemon asks when peers come and secrets are read anew. */
static int now_and_then(void)
{
    static const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};
    struct addrinfo *found = NULL;
    struct ifaddrs *interfaces = NULL;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        int fd = socket(families[i], families[i] == AF_NETLINK ? SOCK_RAW : SOCK_STREAM, 0);
        if (fd < 0 && errno != EAFNOSUPPORT)
            return DID_NOT_HOLD;
        close(fd);
    }
    int diagnosis = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (diagnosis < 0 && errno != EPROTONOSUPPORT)
        return DID_NOT_HOLD;
    close(diagnosis);
    if (getaddrinfo("127.0.0.1", "1", NULL, &found) != 0 || getifaddrs(&interfaces) != 0)
        return DID_NOT_HOLD;
    freeaddrinfo(found);
    freeifaddrs(interfaces);
    int process = (int)syscall(SYS_pidfd_open, getpid(), 0), zero = 0, bytes;
    int stream = socket(AF_UNIX, SOCK_STREAM, 0);
    return process >= 0 && fcntl(process, F_SETFL, fcntl(process, F_GETFL)) == 0 &&
                   ioctl(stream, FIONBIO, &zero) == 0 && ioctl(stream, SIOCOUTQ, &bytes) == 0 &&
                   ioctl(stream, FIONREAD, &bytes) == 0 && prctl(PR_SET_NAME, "shoald") == 0
               ? HELD
               : DID_NOT_HOLD;
}

/* Do what the daemon does all day. */
static int daily_work(void)
{
    pthread_t thread;
    void *result = NULL;
    int one = 1, pair[2];
    if (pthread_create(&thread, NULL, thread_main, &one) != 0 ||
        pthread_join(thread, &result) != 0 || result != &one)
        return DID_NOT_HOLD;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || write(pair[0], "x", 1) != 1)
        return DID_NOT_HOLD;
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    int memory = memfd_create("sandbox", MFD_CLOEXEC);
    int bell = eventfd(0, EFD_CLOEXEC);
    if (file < 0 || memory < 0 || bell < 0 || ftruncate(memory, 4096) != 0)
        return DID_NOT_HOLD;
    void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    return mapped != MAP_FAILED && unlink("/nothing/there") == -1 && errno == ENOENT ? HELD
                                                                                     : DID_NOT_HOLD;
}

static const struct {
    const char *what;
    int (*function)(void);
} cases[] = {
    {"newer calls", newer_calls},
    {"signalling itself", signalling_itself},
    {"now and then", now_and_then},
    {"daily work", daily_work},
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

START_TEST(it_holds)
{
    expect_held("it_holds", cases[_i].what, cases[_i].function);
}
END_TEST

static int starting_it_again(void)
{
    struct error error = {0};
    return sandbox_enter(&error) == 0 ? HELD : DID_NOT_HOLD;
}

START_TEST(it_can_be_entered_twice)
{
    if (inside(daily_work) == NO_SANDBOX) {
        suite_skip("it_can_be_entered_twice", "this kernel does not filter system calls");
        return;
    }
    ck_assert_int_eq(inside(starting_it_again), HELD);
}
END_TEST

static void *thread_waits(void *argument)
{
    char byte;
    int *pair = argument;
    if (read(pair[0], &byte, 1) != 1)
        return NULL;
    return refused(setuid(geteuid())) == HELD ? argument : NULL;
}

/* A thread that was there before is in it too. */
static int with_a_thread(void)
{
    int pair[2];
    pthread_t thread;
    void *result = NULL;
    struct error error = {0};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 ||
        pthread_create(&thread, NULL, thread_waits, pair) != 0)
        return DID_NOT_HOLD;
    if (sandbox_enter(&error) != 0 || write(pair[1], "x", 1) != 1)
        return NO_SANDBOX;
    pthread_join(thread, &result);
    return result == pair ? HELD : DID_NOT_HOLD;
}

START_TEST(all_threads_are_in_it)
{
    if (inside(daily_work) == NO_SANDBOX) {
        suite_skip("all_threads_are_in_it", "this kernel does not filter system calls");
        return;
    }
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(with_a_thread());
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), HELD);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sandbox");
    TCase *tests = tcase_create("sandbox");
    tcase_add_loop_test(tests, test_denied, 0, DENIED);
    tcase_add_loop_test(tests, test_other_tables_of_calls, 0, 2);
    tcase_add_loop_test(tests, it_holds, 0, CASES);
    tcase_add_test(tests, it_can_be_entered_twice);
    tcase_add_test(tests, all_threads_are_in_it);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
