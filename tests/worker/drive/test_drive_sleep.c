/* A driver sleeps on the doorbell that the daemon has made: it wakes at each ring, and when the
 * daemon closes its end it sleeps without. */
#include "worker/drive/drive_sleep.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/suite.h"

static struct shoal_job *job;
static int bell, daemons_socket;

static void setup(void)
{
    struct error error = {0};
    int ends[2], sockets[2];
    job = calloc(1, sizeof(*job));
    ck_assert_ptr_nonnull(job);
    pthread_mutex_init(&job->lock, NULL);
    ck_assert_int_eq(arena_create(&job->arena, ARENA_LEAST_BYTES, 64, &job->arena_fd, &error), 0);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    job->completion_doorbell = ends[0];
    bell = ends[1];
    job->client.fd = sockets[0];
    daemons_socket = sockets[1];
    job->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    job->socket_read = true;
    pthread_mutex_lock(&job->lock);
}

static void teardown(void)
{
    pthread_mutex_unlock(&job->lock);
    arena_unmap(&job->arena);
    close(job->arena_fd);
    if (job->completion_doorbell >= 0)
        close(job->completion_doorbell);
    close(job->client.fd);
    close(daemons_socket);
    close(job->wake_fd);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

/* The sleep has no end of its own: it returns only when something wakes it. */
static void sleep_for_ever(void)
{
    drive_sleep(job, UINT64_MAX);
}

START_TEST(test_rings_wake)
{
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(write(bell, "xx", 2), 2);
        sleep_for_ever();
        ck_assert_int_eq(poll(&(struct pollfd){job->completion_doorbell, POLLIN, 0}, 1, 0), 0);
    }
    close(bell);
}
END_TEST

START_TEST(test_daemon_closes_its_end)
{
    ck_assert_int_eq(write(bell, "x", 1), 1);
    close(bell);
    sleep_for_ever(); /* the ring */
    sleep_for_ever(); /* the end */
    ck_assert_int_eq(job->completion_doorbell, -1);
    /* The doorbell is no event any more: another event ends the next sleep. */
    ck_assert_int_eq(eventfd_write(job->wake_fd, 1), 0);
    sleep_for_ever();
    uint64_t value;
    ck_assert_int_lt(read(job->wake_fd, &value, sizeof(value)), 0); /* it was taken */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("drive_sleep");
    TCase *cases = tcase_create("drive_sleep");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_rings_wake);
    tcase_add_test(cases, test_daemon_closes_its_end);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
