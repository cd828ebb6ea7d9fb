/* What a process may still do when it is in the sandbox, and what not. Each case is a process of
 * its own, for there is no way out. */
#include "server/sandbox/sandbox.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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
#include <sys/uio.h>
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

/* As if the kernel did not have the call. */
static int refused(long result)
{
    return result == -1 && errno == ENOSYS ? HELD : DID_NOT_HOLD;
}

static int starting_a_program(void)
{
    char name[] = "true";
    char *const words[] = {name, NULL};
    return refused(execv("/bin/true", words));
}

static int looking_into_another(void)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {&byte, 1};
    return refused(process_vm_readv(getppid(), &here, 1, &there, 1, 0));
}

static int sending_a_signal(void)
{
    pid_t other = getppid();
    siginfo_t info = {.si_code = SI_QUEUE};
    return refused(kill(other, 0)) || refused(syscall(SYS_tgkill, other, other, 0)) ||
           refused(syscall(SYS_tkill, other, 0)) ||
           refused(syscall(SYS_rt_sigqueueinfo, other, 0, &info)) ||
           refused(syscall(SYS_rt_tgsigqueueinfo, other, other, 0, &info));
}

/* A descriptor that has something to say signals its owner. */
static int signals_by_descriptors(void)
{
    pid_t other = getppid();
    struct f_owner_ex owner = {F_OWNER_PID, other};
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        return DID_NOT_HOLD;
    return refused(fcntl(fds[0], F_SETOWN, other)) || refused(fcntl(fds[0], F_SETOWN_EX, &owner)) ||
           refused(fcntl(fds[0], F_SETSIG, SIGKILL)) ||
           refused(fcntl(fds[0], F_SETLEASE, F_RDLCK)) ||
           refused(fcntl(fds[0], F_NOTIFY, DN_CREATE)) ||
           refused(ioctl(fds[0], FIOSETOWN, &other)) || refused(ioctl(fds[0], SIOCSPGRP, &other)) ||
           refused(ioctl(fds[0], TIOCSTI, "x"));
}

static int priorities(void)
{
    struct sched_param param = {0};
    return refused(setpriority(PRIO_PROCESS, (id_t)getppid(), 5)) ||
           refused(setpriority(PRIO_PROCESS, 0, 5)) ||
           refused(sched_setscheduler(getppid(), SCHED_OTHER, &param)) ||
           refused(sched_setparam(getppid(), &param)) ||
           refused(syscall(SYS_sched_setattr, getppid(), NULL, 0)) ||
           refused(syscall(SYS_ioprio_set, 1, getppid(), 0)) ||
           refused(syscall(SYS_migrate_pages, getppid(), 0, NULL, NULL));
}

#ifndef SHOAL_SANITIZED
static int affinity_of_another(void)
{
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof(cores), &cores) != 0 ||
        sched_setaffinity(0, sizeof(cores), &cores) != 0)
        return DID_NOT_HOLD;
    return refused(sched_setaffinity(getppid(), sizeof(cores), &cores));
}

/* What a process says of itself for others to use. */
static int telling_others(void)
{
    return refused(prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)) ||
           refused(prctl(PR_SET_CHILD_SUBREAPER, 1));
}
#endif

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

static int other_sockets(void)
{
    static const int families[] = {AF_PACKET, AF_ALG, AF_VSOCK, AF_KEY, AF_BLUETOOTH, AF_CAN};
    int pair[2];
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (refused(socket(families[i], SOCK_RAW, 0)) ||
            refused(socketpair(families[i], SOCK_STREAM, 0, pair)))
            return DID_NOT_HOLD;
    return refused(socketpair(AF_INET, SOCK_STREAM, 0, pair));
}

static int setting_limits_of_another(void)
{
    struct rlimit limit;
    return refused(prlimit(getppid(), RLIMIT_NOFILE, NULL, &limit));
}

/* As abort does. */
static int signalling_itself(void)
{
    struct rlimit limit;
    return raise(SIGURG) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 ? HELD : DID_NOT_HOLD;
}

static int changing_rights(void)
{
    return refused(chmod("/nothing/there", 0777)) || refused(fchmod(0, 0777));
}

static int changing_names(void)
{
    return refused(rename("/nothing/there", "/nothing/here")) ||
           refused(symlink("/nothing/there", "/nothing/here"));
}

static int becoming_somebody(void)
{
    return refused(setuid(geteuid())) || refused(unshare(CLONE_NEWNET));
}

static int asking_the_kernel(void)
{
    return refused(syscall(SYS_bpf, 0, NULL, 0)) || refused(syscall(SYS_io_uring_setup, 1, NULL)) ||
           refused(syscall(SYS_keyctl, 0, 0)) || refused(syscall(SYS_userfaultfd, 0));
}

#ifndef SHOAL_SANITIZED
static int making_a_process(void)
{
    return refused(fork()) || refused(syscall(SYS_vfork));
}

static int tracing(void)
{
    return refused(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
}
#endif

static void *thread_main(void *argument)
{
    return argument;
}

/* What a daemon asks the system for when peers come and secrets are read anew. */
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

/* What the daemon does all day. */
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
    {"starting a program", starting_a_program},
    {"looking into another process", looking_into_another},
    {"sending a signal", sending_a_signal},
    {"signals by descriptors", signals_by_descriptors},
    {"priorities", priorities},
    {"newer calls", newer_calls},
    {"sockets of other families", other_sockets},
    {"setting limits of another", setting_limits_of_another},
    {"signalling itself", signalling_itself},
    {"changing rights of files", changing_rights},
    {"changing names of files", changing_names},
    {"becoming somebody else", becoming_somebody},
    {"asking the kernel", asking_the_kernel},
#ifndef SHOAL_SANITIZED
    {"the cores of another", affinity_of_another},
    {"telling others", telling_others},
    {"making a process", making_a_process},
    {"tracing", tracing},
#endif
    {"now and then", now_and_then},
    {"daily work", daily_work},
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

START_TEST(it_holds)
{
    int result = inside(cases[_i].function);
    if (result == NO_SANDBOX) {
        suite_skip("it_holds", "this kernel does not filter system calls");
        return;
    }
    ck_assert_msg(result == HELD, "%s", cases[_i].what);
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
    tcase_add_loop_test(tests, it_holds, 0, CASES);
    tcase_add_test(tests, it_can_be_entered_twice);
    tcase_add_test(tests, all_threads_are_in_it);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
