/* What a process may still do when it is in the sandbox, and what not. Each case is a process of
 * its own, for there is no way out. */
#include "server/sandbox/sandbox.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
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

static int refused(long result)
{
    return result == -1 && errno == EPERM ? HELD : DID_NOT_HOLD;
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
    {"setting limits of another", setting_limits_of_another},
    {"signalling itself", signalling_itself},
    {"changing rights of files", changing_rights},
    {"changing names of files", changing_names},
    {"becoming somebody else", becoming_somebody},
    {"asking the kernel", asking_the_kernel},
#ifndef SHOAL_SANITIZED
    {"making a process", making_a_process},
    {"tracing", tracing},
#endif
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
