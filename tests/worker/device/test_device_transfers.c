/* Sends and receives of a device's memory, on the stand-in for CUDA's driver: every rank a thread,
 * all on one GPU, the daemon in a thread too. */
#include "worker/shoal.h"

#include "tests/lib/cuda/cuda_stand_in.h"
#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"
#include "worker/job/job.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 300007 }; /* more than a piece that is copied at once */

/* Check that nothing is left, and that no memory was freed too early. */
static void check_nothing_left(bool memory_too)
{
    stand_in_check_nothing_left(memory_too);
    ck_assert_int_eq(stand_in_open()->late_frees(), 0);
}

static void run(uint64_t seed, uint32_t ranks, void (*body)(struct member *))
{
    stand_in_open()->seed(seed);
    world_run(&(struct fake_daemon_options){.world_size = ranks, .servers = 2, .seed = seed}, body);
    check_nothing_left(true);
}

static int32_t value_at(int from, size_t index, int round)
{
    return (int32_t)index * 3 + from * 1000003 + round * 17;
}

static void fill(int32_t *values, size_t count, int from, int round)
{
    for (size_t i = 0; i < count; i++)
        values[i] = value_at(from, i, round);
}

static int32_t *device_values(struct member *member, size_t count, int from, int round)
{
    int32_t *values = malloc(count * sizeof(*values) + 1);
    int32_t *memory = shoal_device_alloc(member->job, count * sizeof(*values));
    ck_assert_msg(memory != NULL, "%s", shoal_error_text());
    fill(values, count, from, round);
    GOOD(shoal_device_copy(member->job, memory, values, count * sizeof(*values)));
    free(values);
    return memory;
}

static void expect_values(struct member *member, const int32_t *memory, size_t count, int from,
                          int round)
{
    int32_t *got = malloc(count * sizeof(*got) + 1);
    GOOD(shoal_device_copy(member->job, got, memory, count * sizeof(*got)));
    for (size_t i = 0; i < count; i++)
        EXPECT(got[i] == value_at(from, i, round));
    free(got);
}

static shoal_request *start_send(struct member *member, void *stream, const int32_t *data,
                                 size_t count, int peer, int tag)
{
    shoal_group *world = shoal_world(member->job);
    shoal_request *request;
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
    GOOD(shoal_send(world, data, count, SHOAL_I32, peer, tag, &request));
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_HOST, NULL));
    return request;
}

static shoal_request *start_receive(struct member *member, void *stream, int32_t *data,
                                    size_t count, int peer, int tag)
{
    shoal_group *world = shoal_world(member->job);
    shoal_request *request;
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
    GOOD(shoal_recv(world, data, count, SHOAL_I32, peer, tag, &request));
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_HOST, NULL));
    return request;
}

/* --- stream order --------------------------------------------------------------------------- */

/* From a device to a device, from memory to a device, and back; of any size. */
static void check_data(struct member *member)
{
    static const size_t counts[] = {0, 1, 1000, COUNT, 5 * COUNT};
    shoal_group *world = shoal_world(member->job);
    stand_in_open_device(member->job);
    void *stream = shoal_device_stream(member->job);
    for (int round = 0; round < 20; round++) {
        size_t count = counts[round / 4], bytes = count * sizeof(int32_t);
        bool sends = (member->rank + round) % 2 == 0;
        bool on_device = sends ? round % 2 : round / 2 % 2;
        int32_t *host = calloc(count + 1, sizeof(*host));
        int32_t *memory = device_values(member, count, sends ? member->rank : 9, round);
        fill(host, count, sends ? member->rank : 9, round);
        GOOD(shoal_group_set_stream(world, (enum shoal_memory)on_device, stream));
        void *data = on_device ? memory : host;
        int peer = 1 - member->rank;
        GOOD(sends ? shoal_send(world, data, count, SHOAL_I32, peer, round, NULL)
                   : shoal_recv(world, data, count, SHOAL_I32, peer, round, NULL));
        if (!on_device) /* to look at them in one way */
            GOOD(shoal_device_copy(member->job, memory, host, bytes));
        expect_values(member, memory, count, sends ? member->rank : peer, round);
        shoal_device_free(member->job, memory);
        free(host);
    }
}

START_TEST(test_data)
{
    stand_in_open()->set_version(_i == 0 ? 12000 : 13000);
    run((uint64_t)_i + 5, 2, check_data);
    ck_assert_int_eq(stand_in_open()->default_operations(), 0);
}
END_TEST

/* Check that the call sends what operations on the stream before it have written, however late they
 * are, and does not wait for them; it does not send what comes on the stream behind the wait for
 * the request. */
static void check_late_sender(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    stand_in_open_device(member->job);
    int32_t *data = device_values(member, COUNT, member->rank, 0);
    int32_t *late = device_values(member, COUNT, member->rank, 1);
    int32_t *after = device_values(member, COUNT, member->rank, 2);
    if (member->rank == 0) {
        cuda->stream_hold(stream);
        cuda->stream_copy(stream, data, late, COUNT * sizeof(*data));
        shoal_request *request = start_send(member, stream, data, COUNT, 1, 0);
        GOOD(shoal_request_wait_stream(request, stream));
        cuda->stream_copy(stream, data, after, COUNT * sizeof(*data));
        BAD(shoal_wait(request, 20), SHOAL_ETIMEOUT, "number 0: its stream has not come to it");
        /* Another one with the same tag does not wait for it. */
        int32_t word = 7;
        GOOD(shoal_send(shoal_world(member->job), &word, 1, SHOAL_I32, 1, 0, NULL));
        cuda->stream_let_go(stream);
        GOOD(shoal_wait(request, -1));
        cuda->stream_finish(stream);
        expect_values(member, data, COUNT, 0, 2);
    } else {
        int32_t word = 0;
        shoal_request *request = start_receive(member, stream, data, COUNT, 0, 0);
        GOOD(shoal_recv(shoal_world(member->job), &word, 1, SHOAL_I32, 0, 0, NULL));
        ck_assert_int_eq(word, 7);
        GOOD(shoal_wait(request, -1));
        expect_values(member, data, COUNT, 0, 1);
    }
    shoal_device_free(member->job, data);
    shoal_device_free(member->job, late);
    shoal_device_free(member->job, after);
    cuda->stream_drop(stream);
}

START_TEST(test_late_sender)
{
    run((uint64_t)_i, 2, check_late_sender);
}
END_TEST

/* Check that memory which is received into belongs to its stream until the stream has come to the
 * call: the data waits in the arena, and the sender does not wait. Another stream's operations
 * behind its wait find the data. */
static void check_late_receiver(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make(), *other = cuda->stream_make();
    stand_in_open_device(member->job);
    int32_t *data = device_values(member, COUNT, member->rank, 0);
    int32_t *before = device_values(member, COUNT, 5, 5);
    int32_t *copy = device_values(member, COUNT, 6, 6);
    if (member->rank == 0) {
        GOOD(shoal_wait(start_send(member, stream, data, COUNT, 1, 0), -1));
    } else {
        cuda->stream_hold(stream);
        cuda->stream_copy(stream, before, data, COUNT * sizeof(*data));
        shoal_request *request = start_receive(member, stream, data, COUNT, 0, 0);
        GOOD(shoal_request_wait_stream(request, other));
        cuda->stream_copy(other, copy, data, COUNT * sizeof(*data));
        int32_t word;
        GOOD(shoal_recv(shoal_world(member->job), &word, 1, SHOAL_I32, 0, 1, NULL));
        ck_assert_int_eq(word, 3); /* the first one has come before */
        BAD(shoal_wait(request, 20), SHOAL_ETIMEOUT, "its stream has not come to it");
        expect_values(member, data, COUNT, 1, 0);
        cuda->stream_let_go(stream);
        shoal_request_free(request);
        cuda->stream_finish(other);
        expect_values(member, copy, COUNT, 0, 0);
        expect_values(member, before, COUNT, 1, 0);
    }
    if (member->rank == 0) {
        int32_t word = 3;
        GOOD(shoal_send(shoal_world(member->job), &word, 1, SHOAL_I32, 1, 1, NULL));
    }
    shoal_device_free(member->job, data);
    shoal_device_free(member->job, before);
    shoal_device_free(member->job, copy);
    cuda->stream_drop(stream);
    cuda->stream_drop(other);
}

START_TEST(test_late_receiver)
{
    run((uint64_t)_i + 20, 2, check_late_receiver);
}
END_TEST

/* Both send first, and their streams wait for that before they come to the receive. */
static void check_both_send_first(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    int peer = 1 - member->rank;
    stand_in_open_device(member->job);
    int32_t *sent = device_values(member, COUNT, member->rank, 0);
    int32_t *got = device_values(member, COUNT, 8, 8);
    for (int round = 0; round < 2; round++) {
        shoal_request *send = start_send(member, stream, sent, COUNT, peer, 0);
        GOOD(shoal_request_wait_stream(send, stream));
        shoal_request_free(send);
        shoal_request *receive = start_receive(member, stream, got, COUNT, peer, 0);
        GOOD(shoal_request_wait_stream(receive, stream));
        shoal_request_free(receive);
    }
    cuda->stream_finish(stream);
    expect_values(member, got, COUNT, peer, 0);
    shoal_device_free(member->job, sent);
    shoal_device_free(member->job, got);
    cuda->stream_drop(stream);
}

START_TEST(test_both_send_first)
{
    run((uint64_t)_i + 1, 2, check_both_send_first);
}
END_TEST

/* Nothing to copy, and in the order of the streams all the same: the sender's is late, then the
 * receiver's, when all has come. */
static void check_no_elements(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    shoal_group *world = shoal_world(member->job);
    stand_in_open_device(member->job);
    for (int round = 0; round < 2; round++) {
        bool late = member->rank == round;
        if (late)
            cuda->stream_hold(stream);
        shoal_request *request = member->rank == 0
                                     ? start_send(member, stream, NULL, 0, 1, round)
                                     : start_receive(member, stream, NULL, 0, 0, round);
        if (!late && round == 1)
            GOOD(shoal_wait(request, -1));
        GOOD(shoal_barrier(world, NULL));
        if (late)
            BAD(shoal_wait(request, 20), SHOAL_ETIMEOUT, "its stream has not come to it");
        else if (round == 0)
            BAD(shoal_wait(request, 20), SHOAL_ETIMEOUT, "number 0: submitted");
        GOOD(shoal_barrier(world, NULL));
        if (late)
            cuda->stream_let_go(stream);
        if (late || round == 0)
            GOOD(shoal_wait(request, -1));
    }
    cuda->stream_drop(stream);
}

START_TEST(test_no_elements)
{
    run((uint64_t)_i + 40, 2, check_no_elements);
}
END_TEST

/* More than may be under way, on several streams, between all-reduces. */
static void check_many(struct member *member)
{
    enum { EACH = 300, STREAMS = 5, SIZE = 500 };
    const struct stand_in *cuda = stand_in_open();
    void *streams[STREAMS];
    int size = member->world->size, next = (member->rank + 1) % size;
    int previous = (member->rank + size - 1) % size;
    shoal_group *world = shoal_world(member->job);
    stand_in_open_device(member->job);
    for (int i = 0; i < STREAMS; i++)
        streams[i] = cuda->stream_make();
    int32_t *sent = device_values(member, EACH * SIZE, member->rank, 0);
    int32_t *got = device_values(member, EACH * SIZE, 8, 8);
    float ones[2000], *sums = shoal_device_alloc(member->job, sizeof(ones));
    for (int i = 0; i < 2000; i++)
        ones[i] = 1;
    GOOD(shoal_device_copy(member->job, sums, ones, sizeof(ones)));
    for (int i = 0; i < EACH; i++) {
        void *stream = streams[i % STREAMS];
        shoal_request *requests[] = {
            start_receive(member, stream, got + i * SIZE, SIZE, previous, 0),
            start_send(member, streams[i * 7 % STREAMS], sent + i * SIZE, SIZE, next, 0)};
        if (i % 50 == 0) {
            GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
            GOOD(shoal_all_reduce(world, sums, sums, 2000, SHOAL_F32, SHOAL_AVG, NULL));
        }
        for (int k = 0; k < 2; k++) {
            int result = shoal_request_wait_stream(requests[k], stream);
            ck_assert_msg(result == SHOAL_OK, "%s", shoal_error_text());
            shoal_request_free(requests[k]);
        }
    }
    for (int i = 0; i < STREAMS; i++) {
        cuda->stream_finish(streams[i]);
        cuda->stream_drop(streams[i]);
    }
    expect_values(member, got, EACH * SIZE, previous, 0);
    GOOD(shoal_device_copy(member->job, ones, sums, sizeof(ones)));
    ck_assert(ones[0] == 1 && ones[1999] == 1);
    shoal_device_free(member->job, sent);
    shoal_device_free(member->job, got);
    shoal_device_free(member->job, sums);
}

START_TEST(test_many)
{
    run(3, (uint32_t)_i + 2, check_many);
    ck_assert_int_gt(stand_in_open()->calls("cuMemcpyBatchAsync"), 0);
}
END_TEST

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t offset_in_arena(const shoal_job *job, const void *memory)
{
    return (uint64_t)((const uint8_t *)memory - job->arena.base);
}

/* Fill a page, so that memory that is allocated next, if it is large, begins on a page. */
static void fill_page(shoal_job *job)
{
    void *probe = shoal_alloc(job, COUNT * sizeof(int32_t));
    uint64_t over = offset_in_arena(job, probe) % page_bytes();
    shoal_free(job, probe); /* the first fit again */
    if (over > 0)
        ck_assert_ptr_eq(shoal_alloc(job, page_bytes() - over), probe);
}

/* Open a device with so many pages of the memory pinned, which is the arena's, and what is before:
 * the limit is in the page behind them. */
static void half_pin(struct member *member, const void *memory, uint64_t pages)
{
    shoal_job *job = member->job;
    uint64_t end = offset_in_arena(job, memory) + pages * page_bytes();
    struct shoal_device_options options = {.struct_size = sizeof(options),
                                           .library = stand_in_open()->path,
                                           .pinned_bytes = end + 100};
    GOOD(shoal_device_open(job, &options));
    ck_assert_uint_eq(job->progress.pinned_bytes, end);
}

/* The limit of what is pinned lies in the middle of a transfer's memory, between two pieces of it
 * or in one. */
static void check_half_pinned(struct member *member, uint64_t pages)
{
    shoal_job *job = member->job;
    fill_page(job);
    void *probe = shoal_alloc(job, COUNT * sizeof(int32_t));
    shoal_free(job, probe);
    half_pin(member, probe, pages);
    int32_t *data = device_values(member, COUNT, member->rank, 0);
    int32_t *got = device_values(member, COUNT, 7, 7);
    void *stream = shoal_device_stream(job);
    shoal_request *requests[] = {member->rank == 0
                                     ? start_send(member, stream, data, COUNT, 1, 0)
                                     : start_receive(member, stream, got, COUNT, 0, 0),
                                 member->rank == 0 ? start_receive(member, stream, got, COUNT, 1, 0)
                                                   : start_send(member, stream, data, COUNT, 0, 0)};
    GOOD(shoal_wait(requests[0], -1));
    GOOD(shoal_wait(requests[1], -1));
    expect_values(member, got, COUNT, 1 - member->rank, 0);
    shoal_device_free(job, data);
    shoal_device_free(job, got);
}

static void check_half_pinned_piece(struct member *member)
{
    check_half_pinned(member, 1);
}

static void check_half_pinned_transfer(struct member *member)
{
    check_half_pinned(member, PROGRESS_COPY_BYTES / page_bytes());
}

START_TEST(test_half_pinned)
{
    run(4, 2, _i ? check_half_pinned_transfer : check_half_pinned_piece);
    ck_assert_int_gt(stand_in_open()->unpinned(), 0);
}
END_TEST

/* A copy of the program's own in one call, in both directions, from and to memory that lies across
 * the limit, that ends and that begins there. */
static void check_half_pinned_copy(struct member *member)
{
    shoal_job *job = member->job;
    const struct stand_in *cuda = stand_in_open();
    fill_page(job);
    int32_t *values = shoal_alloc(job, COUNT * sizeof(*values));
    half_pin(member, values, 1);
    int32_t *memory = shoal_device_alloc(job, COUNT * sizeof(*memory));
    const size_t edge = page_bytes() / sizeof(*values);
    const struct {
        size_t first, count;
        long copies, unpinned;
    } cases[] = {
        {0, COUNT, 2, 1},           {edge - 1, 2, 2, 1}, {0, edge, 1, 0},
        {edge, COUNT - edge, 1, 1}, {7, 0, 1, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t count = cases[i].count, bytes = count * sizeof(*values);
        int32_t *first = values + cases[i].first;
        long copies = cuda->calls("cuMemcpyAsync"), unpinned = cuda->unpinned();
        fill(first, count, (int)i, 1);
        GOOD(shoal_device_copy(job, memory, first, bytes));
        memset(first, 0, bytes);
        GOOD(shoal_device_copy(job, first, memory, bytes));
        for (size_t at = 0; at < count; at++)
            EXPECT(first[at] == value_at((int)i, at, 1));
        ck_assert_int_eq(cuda->calls("cuMemcpyAsync") - copies, 2 * cases[i].copies);
        ck_assert_int_eq(cuda->unpinned() - unpinned, 2 * cases[i].unpinned);
    }
    shoal_device_free(job, memory);
    shoal_free(job, values);
}

START_TEST(test_half_pinned_copy)
{
    run(4, 1, check_half_pinned_copy);
}
END_TEST

/* --- failure -------------------------------------------------------------------------------- */

static void check_refusals(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    shoal_request *request;
    stand_in_open_device(member->job);
    int32_t *data = device_values(member, 4, 0, 0);
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, NULL));
    BAD(shoal_send(world, NULL, 4, SHOAL_I32, 1 - member->rank, 0, &request), SHOAL_EINVALID,
        "send: the buffer is NULL");
    BAD(shoal_recv(world, data, 4, SHOAL_I32, member->rank, 0, &request), SHOAL_EINVALID,
        "not another rank");
    BAD(shoal_send(world, data, 8 << 20, SHOAL_U8, 1 - member->rank, 0, &request), SHOAL_EMEMORY,
        "no room for 8388608 bytes in the arena");
    GOOD(shoal_barrier(world, NULL));
    shoal_device_free(member->job, data);
}

START_TEST(test_refusals)
{
    run(1, 2, check_refusals);
}
END_TEST

static pthread_barrier_t all_started;

/* The job fails with one that waits for its stream, one that waits for the other rank, and one
 * whose data is on its way: streams go on, and nothing copies any more. */
static void check_failed_job(struct member *member)
{
    enum { KINDS = 3 };
    const struct stand_in *cuda = stand_in_open();
    void *held = cuda->stream_make(), *streams[KINDS] = {NULL, NULL, held};
    int peer = 1 - member->rank;
    stand_in_open_device(member->job);
    int32_t *data[2 * KINDS];
    shoal_request *requests[2 * KINDS];
    for (int i = 0; i < KINDS; i++)
        streams[i] = streams[i] ? streams[i] : cuda->stream_make();
    cuda->stream_hold(held);
    for (int i = 0; i < 2 * KINDS; i++) {
        int kind = i / 2;
        /* of the second kind nobody sends, or receives, the other half */
        int tag = kind == 1 ? 10 + 2 * member->rank + i % 2 : kind;
        data[i] = device_values(member, COUNT / 2, member->rank, i);
        requests[i] = i % 2 ? start_send(member, streams[kind], data[i], COUNT / 2, peer, tag)
                            : start_receive(member, streams[kind], data[i], COUNT / 2, peer, tag);
        int result = shoal_request_wait_stream(requests[i], streams[kind]);
        ck_assert_msg(result == SHOAL_OK, "%s", shoal_error_text());
    }
    pthread_barrier_wait(&all_started);
    if (member->rank == 0)
        fake_daemon_fail(member->world->daemon, -1, SHOAL_ELOST, "rank 9 is gone");
    for (int i = 2; i < 2 * KINDS; i++)
        BAD(shoal_wait(requests[i], -1), SHOAL_ELOST, "rank 9 is gone");
    for (int i = 0; i < 2; i++) { /* these may have been done */
        int result = shoal_wait(requests[i], -1);
        ck_assert(result == SHOAL_OK || result == SHOAL_ELOST);
    }
    cuda->stream_let_go(held);
    for (int i = 0; i < KINDS; i++) {
        cuda->stream_finish(streams[i]);
        cuda->stream_drop(streams[i]);
    }
    for (int i = 0; i < 2 * KINDS; i++)
        shoal_device_free(member->job, data[i]);
}

START_TEST(test_failed_job)
{
    pthread_barrier_init(&all_started, NULL, 2);
    run((uint64_t)_i, 2, check_failed_job);
    pthread_barrier_destroy(&all_started);
}
END_TEST

/* Closed with everything under way, or after the device has failed. */
static void start_all(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    void *stream = cuda->stream_make();
    stand_in_open_device(member->job);
    for (int i = 0; i < 6; i++) {
        int32_t *data = device_values(member, COUNT / 4, 0, 0);
        shoal_request *request = i % 2 ? start_send(member, stream, data, COUNT / 4, 1, i)
                                       : start_receive(member, stream, data, COUNT / 4, 1, i);
        if (i % 3)
            GOOD(shoal_request_wait_stream(request, stream));
        if (i % 3 == 0)
            shoal_request_free(request);
    }
    cuda->stream_drop(stream);
}

static void check_closed(struct member *member)
{
    if (member->rank == 0)
        start_all(member);
}

START_TEST(test_closed)
{
    stand_in_open()->seed((uint64_t)_i);
    world_run(&(struct fake_daemon_options){.world_size = 2, .seed = 1}, check_closed);
    check_nothing_left(false);
}
END_TEST

static struct device_queue *left; /* of a job that is closed */

static void check_broken(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    if (member->rank != 0)
        return;
    void *stream = cuda->stream_make();
    stand_in_open_device(member->job);
    left = member->job->device;
    int32_t *data = device_values(member, COUNT, 0, 0);
    shoal_request *receive = start_receive(member, stream, data, COUNT, 1, 0);
    cuda->stream_hold(stream);
    shoal_request *gated = start_send(member, stream, data, COUNT, 1, 0);
    shoal_request *copying = start_send(member, NULL, data, COUNT, 1, 1);
    cuda->break_device(STAND_IN_ILLEGAL_ADDRESS);
    shoal_request *const requests[] = {gated, copying, receive};
    for (int i = 0; i < 3; i++)
        BAD(shoal_wait(requests[i], -1), SHOAL_ESYSTEM, "CUDA_ERROR_ILLEGAL_ADDRESS");
    cuda->stream_drop(stream);
}

START_TEST(test_broken_device)
{
    stand_in_open()->seed((uint64_t)_i);
    world_run(&(struct fake_daemon_options){.world_size = 2, .seed = 3}, check_broken);
    struct stand_in_live live = stand_in_open()->live();
    /* All of it is left when a copy was under way, else nothing. */
    ck_assert(live.contexts == 0 || (live.contexts == 1 && live.registrations == 2));
    ck_assert(live.contexts == 0 || left->device);
    ck_assert(live.contexts == 1 || live.streams + live.events + live.registrations == 0);
}
END_TEST

/* Until a call of the driver fails; the failure says which it was. The other rank has no device,
 * and hears of it at the end. */
static void check_any_call(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    shoal_group *world = shoal_world(member->job);
    struct shoal_device_options options = {
        .struct_size = sizeof(options), .library = cuda->path, .stream_waits = 1};
    int32_t *memory = NULL;
    shoal_request *requests[4] = {NULL};
    int result = SHOAL_OK;
    if (member->rank == 0)
        result = shoal_device_open(member->job, &options);
    void *stream = shoal_device_stream(member->job);
    if (stream && !(memory = shoal_device_alloc(member->job, 4000 * sizeof(*memory))))
        result = SHOAL_ESYSTEM;
    if (member->rank == 0 && result == SHOAL_OK)
        result = shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream);
    static int32_t host[4000];
    int32_t *data = member->rank == 0 ? memory : host;
    for (int i = 0; i < 4 && result == SHOAL_OK; i++) {
        bool sends = i % 2 == member->rank;
        result = sends ? shoal_send(world, data + i * 1000, 1000, SHOAL_I32, 1 - member->rank, 0,
                                    &requests[i])
                       : shoal_recv(world, data + i * 1000, 1000, SHOAL_I32, 1 - member->rank, 0,
                                    &requests[i]);
        if (result == SHOAL_OK && stream)
            result = shoal_request_wait_stream(requests[i], stream);
    }
    char text[512] = "";
    if (result != SHOAL_OK)
        snprintf(text, sizeof(text), "%s", shoal_error_text());
    if (member->rank == 0 && result != SHOAL_OK) /* so that the other one does not wait */
        fake_daemon_fail(member->world->daemon, -1, SHOAL_ELOST, "rank 0 is gone");
    for (int i = 0; i < 4 && requests[i]; i++) {
        int waited = shoal_wait(requests[i], -1);
        if (waited == SHOAL_OK)
            continue;
        if (member->rank == 0 && result == SHOAL_OK) {
            snprintf(text, sizeof(text), "%s", shoal_error_text());
            fake_daemon_fail(member->world->daemon, -1, SHOAL_ELOST, "rank 0 is gone");
        }
        result = waited;
    }
    if (member->rank == 0 && result != SHOAL_OK)
        ck_assert_msg(cuda->failed()[0] && strstr(text, cuda->failed()),
                      "\"%s\" failed, and it says: %s", cuda->failed(), text);
    if (stream) /* a copy may not have been waited for */
        cuda->stream_finish(stream);
    shoal_device_free(member->job, memory);
}

static void run_any_call(int nth)
{
    run((uint64_t)nth, 2, check_any_call);
}

START_TEST(test_any_call_fails)
{
    stand_in_open()->set_version(_i % 2 ? 13000 : 12000);
    stand_in_fail_each_call(run_any_call);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_transfers");
    TCase *order = tcase_create("stream order");
    tcase_set_timeout(order, 240);
    tcase_add_loop_test(order, test_data, 0, 2);
    tcase_add_loop_test(order, test_late_sender, 0, 3);
    tcase_add_loop_test(order, test_late_receiver, 0, 3);
    tcase_add_loop_test(order, test_both_send_first, 0, 3);
    tcase_add_loop_test(order, test_no_elements, 0, 3);
    tcase_add_loop_test(order, test_many, 0, 2);
    tcase_add_loop_test(order, test_half_pinned, 0, 2);
    tcase_add_test(order, test_half_pinned_copy);
    suite_add_tcase(suite, order);
    TCase *failure = tcase_create("failure");
    tcase_set_timeout(failure, 240);
    tcase_add_test(failure, test_refusals);
    tcase_add_loop_test(failure, test_failed_job, 0, 6);
    tcase_add_loop_test(failure, test_closed, 0, 4);
    tcase_add_loop_test(failure, test_broken_device, 0, 6);
    suite_add_tcase(suite, failure);
    TCase *calls = tcase_create("any call");
    tcase_set_timeout(calls, 240);
    tcase_add_loop_test(calls, test_any_call_fails, 0, 2);
    suite_add_tcase(suite, calls);
    return suite_main(suite);
}
