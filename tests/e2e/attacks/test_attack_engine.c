/* What one user's ranks hand to the engine, as much and as awkwardly as they can, does not hold up
 * the collectives of another. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/format/arena.h"
#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"

#define STRANGER_UID 65533
#define SUBMISSIONS 32000u
#define RING_ENTRIES 32768u
#define ARENA_BYTES (8u << 20)
#define HELLO "{\"type\":\"hello\",\"protocol\":1,\"software\":\"test\",\"pid\":1}\n"
/* A collective takes some milliseconds beside the attack, on a busy machine tens of them. It took
 * 12 s. */
#define MOST_MS 3000

/* A rank of the other user, without a library. */
struct hostile {
    int fd;
    struct arena arena;
    int doorbell, bells[2];
};

static struct cluster *cluster;
static struct library_job *victim;
static _Atomic bool stop;
static _Atomic int64_t slowest_ms;
static _Atomic uint32_t done;

static void reduce_all_the_time(struct library_rank *self)
{
    float data[4] = {1, 2, 3, 4}, sum[4];
    shoal_request *request;
    for (bool last = false; !last;) {
        float over[1] = {atomic_load(&stop) ? 1 : 0}; /* all ranks end with the same collective */
        int64_t began_ms = process_now_ms();
        GOOD(
            shoal_all_reduce(shoal_world(self->job), data, sum, 4, SHOAL_F32, SHOAL_SUM, &request));
        GOOD(shoal_wait(request, CLUSTER_PATIENCE_MS));
        int64_t took_ms = process_now_ms() - began_ms;
        if (took_ms > atomic_load(&slowest_ms))
            atomic_store(&slowest_ms, took_ms);
        atomic_fetch_add(&done, 1);
        GOOD(shoal_all_reduce(shoal_world(self->job), over, over, 1, SHOAL_F32, SHOAL_MAX,
                              &request));
        GOOD(shoal_wait(request, CLUSTER_PATIENCE_MS));
        last = over[0] > 0;
    }
}

static bool victim_goes_on(void *context)
{
    return atomic_load(&done) > *(const uint32_t *)context;
}

static void setup(void)
{
    cluster = cluster_start(1, "{\"timeouts\":{\"heartbeat_ms\":100,\"peer_ms\":1500}}");
    ck_assert_int_eq(chmod(cluster->directory, 0755), 0);
    ck_assert_int_eq(chmod(cluster->nodes[0].socket_path, 0666), 0);
    victim = library_job_start(cluster, "undisturbed", 2, reduce_all_the_time, NULL);
    uint32_t few = 10;
    ck_assert(wait_until(victim_goes_on, &few, CLUSTER_PATIENCE_MS));
}

static void teardown(void)
{
    uint32_t before = atomic_load(&done);
    ck_assert(wait_until(victim_goes_on, &before, CLUSTER_PATIENCE_MS));
    atomic_store(&stop, true);
    library_job_finish(victim);
    ck_assert_msg(atomic_load(&slowest_ms) < MOST_MS, "a collective took %ld ms",
                  (long)atomic_load(&slowest_ms));
    ck_assert_ptr_null(strstr(cluster_log(cluster, 0), "stuck"));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}

/* --- the other user --------------------------------------------------------------------------- */

static void connect_as_stranger(struct hostile *rank)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", cluster->nodes[0].socket_path);
    rank->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool root = geteuid() == 0;
    /* The kernel has credentials for each thread. */
    if (root)
        ck_assert_int_eq(syscall(SYS_setresuid, -1, STRANGER_UID, -1), 0);
    int result = connect(rank->fd, (struct sockaddr *)&address, sizeof(address));
    if (root)
        ck_assert_int_eq(syscall(SYS_setresuid, -1, 0, -1), 0);
    ck_assert_int_eq(result, 0);
    ck_assert_int_eq(send(rank->fd, HELLO, strlen(HELLO), MSG_NOSIGNAL), (ssize_t)strlen(HELLO));
}

static void hostile_join(struct hostile *rank, const char *job, int number, int world_size)
{
    int fds[3];
    char line[256];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(fds))];
    } ancillary = {0};
    connect_as_stranger(rank);
    ck_assert_int_eq(arena_create(&rank->arena, ARENA_BYTES, RING_ENTRIES, &fds[0], NULL), 0);
    rank->doorbell = fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert_int_eq(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, rank->bells), 0);
    fds[2] = rank->bells[1];
    snprintf(line, sizeof(line),
             "{\"type\":\"join\",\"job\":\"%s\",\"world_size\":%d,\"rank\":%d,\"local_rank\":-1,"
             "\"timeout_ms\":%d}\n",
             job, world_size, number, CLUSTER_PATIENCE_MS);
    struct iovec part = {line, strlen(line)};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = ancillary.bytes,
                            .msg_controllen = sizeof(ancillary.bytes)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(rights), fds, sizeof(fds));
    ck_assert_int_eq(sendmsg(rank->fd, &header, MSG_NOSIGNAL), (ssize_t)part.iov_len);
    close(fds[0]);
}

/* What the daemon says until it says one of the words, or ends the connection. */
static const char *hostile_hears(struct hostile *rank, const char *word, const char *other)
{
    static char text[65536];
    size_t used = 0;
    struct timeval limit = {CLUSTER_PATIENCE_MS / 1000, 0};
    setsockopt(rank->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    text[0] = '\0';
    while (!strstr(text, word) && !strstr(text, other)) {
        ssize_t got = recv(rank->fd, text + used, sizeof(text) - 1 - used, 0);
        ck_assert_msg(got >= 0, "neither %s nor %s comes: %s", word, other, text);
        if (got == 0)
            break;
        used += (size_t)got;
        text[used] = '\0';
    }
    return text;
}

static void hostile_end(struct hostile *rank)
{
    close(rank->fd);
    close(rank->doorbell);
    close(rank->bells[0]);
    close(rank->bells[1]);
    arena_unmap(&rank->arena);
}

/* Each of a smaller priority than all before it. */
static void hostile_submit(struct hostile *rank, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct arena_submission it = {.type = ARENA_SUBMIT,
                                      .kind = COLLECTIVE_ALL_REDUCE,
                                      .dtype = DTYPE_F32,
                                      .op = REDUCE_SUM,
                                      .request = i,
                                      .sequence = i,
                                      .count = 16,
                                      .in_offset = rank->arena.data_offset,
                                      .out_offset = rank->arena.data_offset,
                                      .priority = SUBMISSIONS - i};
        if (!arena_push_submission(&rank->arena, &it))
            return; /* it is not read any more */
    }
}

/* Whether or not it has been ended before. */
static void hostile_leave(struct hostile *rank)
{
    static const char line[] = "{\"type\":\"leave\"}\n";
    ssize_t sent = send(rank->fd, line, strlen(line), MSG_NOSIGNAL);
    (void)sent;
}

/* A rank alone: what it submits is done as fast as the engine takes it. Then it leaves. */
START_TEST(test_falling_priorities_and_a_leave)
{
    struct hostile rank;
    hostile_join(&rank, "alone", 0, 1);
    hostile_hears(&rank, "\"joined\"", "\"error\"");
    hostile_submit(&rank, SUBMISSIONS);
    hostile_leave(&rank);
    hostile_hears(&rank, "\"left\"", "\"failed\"");
    hostile_end(&rank);
}
END_TEST

/* Of two ranks one submits nothing: what the other one has submitted is kept, and that has a limit.
 */
START_TEST(test_more_requests_than_there_may_be)
{
    struct hostile ranks[2];
    for (int i = 0; i < 2; i++)
        hostile_join(&ranks[i], "waiting", i, 2);
    for (int i = 0; i < 2; i++)
        hostile_hears(&ranks[i], "\"joined\"", "\"error\"");
    hostile_submit(&ranks[0], SUBMISSIONS);
    hostile_leave(&ranks[0]);
    const char *answer = hostile_hears(&ranks[0], "\"left\"", "\"failed\"");
    ck_assert_msg(strstr(answer, "more than 2048 requests under way") != NULL, "%s", answer);
    for (int i = 0; i < 2; i++)
        hostile_end(&ranks[i]);
}
END_TEST

/* Ranks that have as many requests as they may, all of which can be issued at once. */
START_TEST(test_many_ranks_with_many_requests)
{
    enum { RANKS = 12, REQUESTS = 2000 };
    struct hostile ranks[RANKS];
    for (int i = 0; i < RANKS; i++)
        hostile_join(&ranks[i], "many", i, RANKS);
    for (int i = 0; i < RANKS; i++)
        hostile_hears(&ranks[i], "\"joined\"", "\"error\"");
    for (int i = 0; i < RANKS; i++)
        hostile_submit(&ranks[i], REQUESTS);
    for (int i = 0; i < RANKS; i++)
        hostile_leave(&ranks[i]);
    for (int i = 0; i < RANKS; i++) {
        const char *answer = hostile_hears(&ranks[i], "\"left\"", "\"failed\"");
        ck_assert_msg(strstr(answer, "\"left\"") != NULL, "%s", answer);
        hostile_end(&ranks[i]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attack_engine");
    TCase *tests = tcase_create("attack_engine");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, test_falling_priorities_and_a_leave);
    tcase_add_test(tests, test_more_requests_than_there_may_be);
    tcase_add_test(tests, test_many_ranks_with_many_requests);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
