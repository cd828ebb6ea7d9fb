#include "tests/lib/worker/hostile_rank.h"

#include <check.h>
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

#include "tests/lib/worker/library_job.h"

#define STRANGER_UID 65533
#define ARENA_BYTES (8u << 20)
#define HELLO "{\"type\":\"hello\",\"protocol\":3,\"software\":\"test\",\"pid\":1}\n"

static void connect_as_stranger(struct hostile_rank *rank, const struct cluster *cluster)
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

void hostile_join(struct hostile_rank *rank, const struct cluster *cluster, const char *job,
                  int number, int world_size)
{
    int fds[2];
    char line[256];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(fds))];
    } ancillary = {0};
    connect_as_stranger(rank, cluster);
    ck_assert_int_eq(arena_create(&rank->arena, ARENA_BYTES, HOSTILE_RING_ENTRIES, &fds[0], NULL),
                     0);
    rank->doorbell = fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
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

const char *hostile_hears(struct hostile_rank *rank, const char *word, const char *other)
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

struct hostile_rank *hostile_job_start(const struct cluster *cluster, const char *job, int size)
{
    struct hostile_rank *ranks = calloc((size_t)size, sizeof(*ranks));
    ck_assert_ptr_nonnull(ranks);
    for (int i = 0; i < size; i++)
        hostile_join(&ranks[i], cluster, job, i, size);
    for (int i = 0; i < size; i++) {
        const char *answer = hostile_hears(&ranks[i], "\"joined\"", "\"error\"");
        ck_assert_msg(strstr(answer, "\"joined\"") != NULL, "%s", answer);
    }
    return ranks;
}

void hostile_job_end(struct hostile_rank *ranks, int size)
{
    for (int i = 0; i < size; i++) {
        close(ranks[i].fd);
        close(ranks[i].doorbell);
        arena_unmap(&ranks[i].arena);
    }
    free(ranks);
}

void hostile_ring(struct hostile_rank *rank)
{
    uint64_t one = 1;
    ck_assert_int_eq(write(rank->doorbell, &one, sizeof(one)), sizeof(one));
}

void hostile_leave(struct hostile_rank *rank)
{
    static const char line[] = "{\"type\":\"leave\"}\n";
    ssize_t sent = send(rank->fd, line, strlen(line), MSG_NOSIGNAL);
    (void)sent;
}

/* --- the job beside it ------------------------------------------------------------------------ */

struct undisturbed {
    struct cluster *cluster;
    struct library_job *job;
    _Atomic bool stop;
    _Atomic int64_t slowest_ms;
    _Atomic uint32_t done;
};

struct undisturbed_goal {
    struct undisturbed *job;
    uint32_t done;
};

static void reduce_all_the_time(struct library_rank *self)
{
    struct undisturbed *all = self->of->argument;
    float data[4] = {1, 2, 3, 4}, sum[4];
    shoal_request *request;
    for (bool last = false; !last;) {
        float over[1] = {atomic_load(&all->stop) ? 1 : 0}; /* all end with the same collective */
        int64_t began_ms = process_now_ms();
        GOOD(
            shoal_all_reduce(shoal_world(self->job), data, sum, 4, SHOAL_F32, SHOAL_SUM, &request));
        GOOD(shoal_wait(request, CLUSTER_PATIENCE_MS));
        int64_t took_ms = process_now_ms() - began_ms;
        if (took_ms > atomic_load(&all->slowest_ms))
            atomic_store(&all->slowest_ms, took_ms);
        atomic_fetch_add(&all->done, 1);
        GOOD(shoal_all_reduce(shoal_world(self->job), over, over, 1, SHOAL_F32, SHOAL_MAX,
                              &request));
        GOOD(shoal_wait(request, CLUSTER_PATIENCE_MS));
        last = over[0] > 0;
    }
}

static bool undisturbed_has_done(void *context)
{
    const struct undisturbed_goal *goal = context;
    return atomic_load(&goal->job->done) >= goal->done;
}

void undisturbed_goes_on(struct undisturbed *job, uint32_t count)
{
    struct undisturbed_goal goal = {job, atomic_load(&job->done) + count};
    ck_assert(wait_until(undisturbed_has_done, &goal, CLUSTER_PATIENCE_MS));
}

struct undisturbed *undisturbed_start(void)
{
    struct undisturbed *all = calloc(1, sizeof(*all));
    ck_assert_ptr_nonnull(all);
    all->cluster = cluster_start(1, "{\"timeouts\":{\"heartbeat_ms\":100,\"peer_ms\":1500}}");
    ck_assert_int_eq(chmod(all->cluster->directory, 0755), 0);
    ck_assert_int_eq(chmod(all->cluster->nodes[0].socket_path, 0666), 0);
    all->job = library_job_start(all->cluster, "undisturbed", 2, reduce_all_the_time, all);
    undisturbed_goes_on(all, 10);
    return all;
}

struct cluster *undisturbed_cluster(struct undisturbed *job)
{
    return job->cluster;
}

void undisturbed_finish(struct undisturbed *all, int64_t most_ms)
{
    undisturbed_goes_on(all, 1);
    atomic_store(&all->stop, true);
    library_job_finish(all->job);
    ck_assert_msg(atomic_load(&all->slowest_ms) < most_ms, "a collective took %ld ms",
                  (long)atomic_load(&all->slowest_ms));
    ck_assert_ptr_null(strstr(cluster_log(all->cluster, 0), "stuck"));
    ck_assert_int_eq(cluster_stop(all->cluster), 0);
    cluster_free(all->cluster);
    free(all);
}
