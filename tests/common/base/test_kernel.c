/* System calls by number do what glibc's functions of their names do. */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/kernel.h"
#include "tests/lib/suite.h"

/* Readable at its end and no sooner: the child ends when this process lets it. */
START_TEST(test_pidfd)
{
    int held[2];
    ck_assert_int_eq(pipe(held), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        char byte;
        close(held[1]);
        _exit(read(held[0], &byte, 1) == 0 ? 3 : 4);
    }
    struct pollfd watched = {.fd = kernel_pidfd_open(child), .events = POLLIN};
    ck_assert_int_ge(watched.fd, 0);
    ck_assert_int_eq(poll(&watched, 1, 0), 0);
    close(held[1]);
    ck_assert_int_eq(poll(&watched, 1, -1), 1);
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    close(watched.fd);
    close(held[0]);
}
END_TEST

START_TEST(test_pidfd_of_nobody)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    errno = 0;
    ck_assert_int_eq(kernel_pidfd_open(child), -1);
    ck_assert_int_eq(errno, ESRCH);
    errno = 0;
    ck_assert_int_eq(kernel_pidfd_open(-1), -1);
    ck_assert_int_eq(errno, EINVAL);
}
END_TEST

/* Kernels before 5.11 do not have it, and a filter may forbid it: then there is nothing to see. */
static bool has_epoll_pwait2(int epoll)
{
    struct epoll_event event;
    struct timespec none = {0};
    return kernel_epoll_pwait2(epoll, &event, 1, &none) == 0;
}

START_TEST(test_epoll)
{
    int ends[2], epoll = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u32 = 17}, got = {0};
    ck_assert_int_ge(epoll, 0);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &wanted), 0);
    if (!has_epoll_pwait2(epoll)) {
        ck_assert(errno == ENOSYS || errno == EPERM);
        return;
    }
    /* The time is read as ns, and ends a wait in which nothing comes. */
    struct timespec before, after, wait = {.tv_nsec = 2000000};
    clock_gettime(CLOCK_MONOTONIC, &before);
    ck_assert_int_eq(kernel_epoll_pwait2(epoll, &got, 1, &wait), 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_int_ge((after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec,
                     wait.tv_nsec);
    ck_assert_int_eq(write(ends[1], "x", 1), 1);
    ck_assert_int_eq(kernel_epoll_pwait2(epoll, &got, 1, NULL), 1);
    ck_assert_uint_eq(got.data.u32, 17);
    close(ends[0]);
    close(ends[1]);
    close(epoll);
}
END_TEST

START_TEST(test_epoll_refuses)
{
    struct epoll_event event;
    struct timespec wrong = {.tv_nsec = -1};
    int epoll = epoll_create1(0);
    if (has_epoll_pwait2(epoll)) {
        errno = 0;
        ck_assert_int_eq(kernel_epoll_pwait2(epoll, &event, 1, &wrong), -1);
        ck_assert_int_eq(errno, EINVAL);
        ck_assert_int_eq(kernel_epoll_pwait2(-1, &event, 1, NULL), -1);
        ck_assert_int_eq(errno, EBADF);
    }
    close(epoll);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernel");
    TCase *cases = tcase_create("kernel");
    tcase_add_test(cases, test_pidfd);
    tcase_add_test(cases, test_pidfd_of_nobody);
    tcase_add_test(cases, test_epoll);
    tcase_add_test(cases, test_epoll_refuses);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
