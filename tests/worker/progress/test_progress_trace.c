/* Copies that a worker tells a trace of, and room in its submission ring that it keeps for all
 * else. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/suite.h"
#include "worker/progress/progress_private.h"

#define BYTES (4u << 20)
#define OUT_MOST (PROGRESS_OUT_MAX + 2 * PROGRESS_GROUPS_OF(PROGRESS_RING_ENTRIES_LEAST))
#define CHUNK 4096u
#define SLOTS 4u

/* One rank, of which the test plays the daemon. */
struct pair {
    struct arena worker, daemon;
    int fd;
    struct progress progress;
    struct progress_group group;
    struct request request;
    float *data;
};

static void open_pair(struct pair *pair)
{
    static const uint32_t weights[1] = {1};
    memset(pair, 0, sizeof(*pair));
    ck_assert_int_eq(
        arena_create(&pair->worker, BYTES, PROGRESS_RING_ENTRIES_LEAST, &pair->fd, NULL), 0);
    ck_assert_int_eq(arena_attach(&pair->daemon, pair->fd, BYTES, NULL), 0);
    ck_assert_int_eq(
        progress_init(&pair->progress, &pair->worker, pair->worker.data_offset, CHUNK, SLOTS), 0);
    pair->progress.clock_ns = clock_now_ns;
    pair->group = (struct progress_group){
        .number = 3, .rule = {.servers = 1, .weights = weights, .chunk_bytes = CHUNK}};
    ck_assert_int_eq(progress_group_add(&pair->progress, &pair->group,
                                        pair->worker.data_offset + (uint64_t)SLOTS * CHUNK, NULL),
                     0);
}

static void close_pair(struct pair *pair)
{
    progress_clear(&pair->progress);
    arena_unmap(&pair->worker);
    arena_unmap(&pair->daemon);
    close(pair->fd);
    free(pair->data);
}

/* An all_reduce of so many chunks of private memory. */
static void submit(struct pair *pair, uint32_t chunks)
{
    uint64_t count = (uint64_t)chunks * CHUNK / sizeof(float);
    struct error error = {0};
    free(pair->data);
    pair->data = calloc(count, sizeof(float));
    memset(&pair->request, 0, sizeof(pair->request));
    struct request_ask ask = {.kind = COLLECTIVE_ALL_REDUCE,
                              .dtype = DTYPE_F32,
                              .count = count,
                              .send = pair->data,
                              .recv = pair->data};
    ck_assert_msg(progress_submit(&pair->progress, &pair->group, &ask, NULL, 0, 0, &pair->request,
                                  &error) == 0,
                  "%s", error.text);
}

/* One step of the driver; whether it made a copy. */
static bool step(struct pair *pair)
{
    struct progress_copy copy;
    if (progress_work(&pair->progress, clock_now_ns(), &copy) != PROGRESS_COPY)
        return false;
    memcpy(copy.to, copy.from, copy.bytes);
    progress_copied(&pair->progress, &copy, clock_now_ns());
    return true;
}

static bool pop(struct pair *pair, enum arena_submission_type type, struct arena_submission *entry)
{
    if (arena_pop_submission(&pair->daemon, entry) != 1)
        return false;
    ck_assert_uint_eq(entry->type, type);
    return true;
}

static void give_back(struct pair *pair, const struct arena_submission *chunk)
{
    struct arena_completion done = {.type = ARENA_CHUNK_DONE,
                                    .chunk = chunk->chunk,
                                    .request = chunk->request,
                                    .offset = chunk->in_offset};
    ck_assert(arena_push_completion(&pair->daemon, &done));
}

static void finish(struct pair *pair, uint64_t request)
{
    struct arena_completion done = {.type = ARENA_REQUEST_DONE, .request = request};
    ck_assert(arena_push_completion(&pair->daemon, &done));
    while (step(pair))
        ;
    ck_assert_ptr_eq(progress_next_completed(&pair->progress), &pair->request);
    request_clear(&pair->request);
}

START_TEST(copies_are_told_of)
{
    struct pair pair;
    struct arena_submission entry, chunk;
    open_pair(&pair);
    arena_set_tracing(&pair.daemon, true);
    uint64_t before = clock_now_ns();
    submit(&pair, 20); /* too large to be copied by the caller */
    ck_assert(step(&pair));
    ck_assert(pop(&pair, ARENA_SUBMIT, &entry));
    ck_assert(pop(&pair, ARENA_CHUNK, &chunk));
    ck_assert_uint_ge(chunk.begin_ns, before);
    ck_assert_uint_ge(chunk.end_ns, chunk.begin_ns);
    ck_assert_uint_le(chunk.end_ns, clock_now_ns());
    for (uint32_t i = 0; i < 20; i++) {
        give_back(&pair, &chunk);
        ck_assert(step(&pair)); /* out */
        ck_assert(pop(&pair, ARENA_COPIED, &entry));
        ck_assert_uint_eq(entry.chunk, i);
        ck_assert_uint_eq(entry.group, 3);
        ck_assert_uint_eq(entry.sequence, 0);
        ck_assert_uint_eq(entry.omitted, 0);
        ck_assert_uint_ge(entry.begin_ns, chunk.end_ns);
        ck_assert_uint_ge(entry.end_ns, entry.begin_ns);
        ck_assert(i == 19 || (step(&pair) && pop(&pair, ARENA_CHUNK, &chunk)));
    }
    finish(&pair, chunk.request);
    close_pair(&pair);
}
END_TEST

START_TEST(the_callers_own_copy_is_told_of)
{
    struct pair pair;
    struct arena_submission entry;
    open_pair(&pair);
    arena_set_tracing(&pair.daemon, true);
    submit(&pair, 1);
    ck_assert(pop(&pair, ARENA_SUBMIT, &entry));
    ck_assert(pop(&pair, ARENA_CHUNK, &entry));
    ck_assert_uint_gt(entry.begin_ns, 0);
    ck_assert_uint_ge(entry.end_ns, entry.begin_ns);
    give_back(&pair, &entry);
    finish(&pair, entry.request);
    ck_assert(pop(&pair, ARENA_COPIED, &entry));
    close_pair(&pair);
}
END_TEST

START_TEST(nobody_is_told_when_nobody_asks)
{
    struct pair pair;
    struct arena_submission entry;
    open_pair(&pair);
    for (uint32_t chunks = 1; chunks <= 20; chunks += 19) {
        submit(&pair, chunks);
        while (step(&pair))
            ;
        ck_assert(pop(&pair, ARENA_SUBMIT, &entry));
        for (uint32_t i = 0; i < chunks; i++) {
            ck_assert(pop(&pair, ARENA_CHUNK, &entry));
            ck_assert_uint_eq(entry.begin_ns, 0);
            ck_assert_uint_eq(entry.end_ns, 0);
            give_back(&pair, &entry);
            while (step(&pair))
                ;
        }
        finish(&pair, entry.request);
        ck_assert_int_eq(arena_pop_submission(&pair.daemon, &entry), 0);
    }
    /* Without a clock it tells no times either. */
    pair.progress.clock_ns = NULL;
    arena_set_tracing(&pair.daemon, true);
    submit(&pair, 1);
    ck_assert(pop(&pair, ARENA_SUBMIT, &entry));
    ck_assert(pop(&pair, ARENA_CHUNK, &entry));
    ck_assert_uint_eq(entry.begin_ns, 0);
    give_back(&pair, &entry);
    finish(&pair, entry.request);
    ck_assert_int_eq(arena_pop_submission(&pair.daemon, &entry), 0);
    close_pair(&pair);
}
END_TEST

/* A copy that began before the trace, or ends after it, is told of whole or not at all. */
START_TEST(the_edges_of_a_trace)
{
    struct pair pair;
    struct arena_submission entry;
    struct progress_copy copy;
    open_pair(&pair);
    submit(&pair, 20);
    ck_assert_int_eq(progress_work(&pair.progress, clock_now_ns(), &copy), PROGRESS_COPY);
    arena_set_tracing(&pair.daemon, true);
    progress_copied(&pair.progress, &copy, clock_now_ns());
    ck_assert(pop(&pair, ARENA_SUBMIT, &entry));
    ck_assert(pop(&pair, ARENA_CHUNK, &entry));
    ck_assert_uint_eq(entry.begin_ns, 0);
    ck_assert_uint_eq(entry.end_ns, 0);
    ck_assert_int_eq(progress_work(&pair.progress, clock_now_ns(), &copy), PROGRESS_COPY);
    arena_set_tracing(&pair.daemon, false);
    progress_copied(&pair.progress, &copy, clock_now_ns());
    ck_assert(pop(&pair, ARENA_CHUNK, &entry));
    ck_assert_uint_gt(entry.begin_ns, 0);
    ck_assert_uint_ge(entry.end_ns, entry.begin_ns);
    struct error error = {0};
    error_set(&error, ERR_LOST, "over");
    progress_fail(&pair.progress, &error, 0);
    ck_assert_ptr_eq(progress_next_completed(&pair.progress), &pair.request);
    request_clear(&pair.request);
    close_pair(&pair);
}
END_TEST

/* A daemon that does not read finds room in the ring for all that must get through. */
START_TEST(the_ring_keeps_its_room)
{
    struct pair pair;
    struct staging_slot slot = {.chunks = 1, .begin_ns = 1, .end_ns = 2};
    struct arena_submission entry;
    open_pair(&pair);
    struct request request = {.group = &pair.group, .number = 9, .sequence = 4};
    slot.request = &request;
    for (uint32_t i = 0; i < 2 * PROGRESS_RING_ENTRIES_LEAST; i++)
        progress_trace_copied(&pair.progress, &slot);
    ck_assert_uint_eq(arena_submission_room(&pair.worker), OUT_MOST);
    uint32_t told = PROGRESS_RING_ENTRIES_LEAST - OUT_MOST;
    ck_assert_uint_eq(pair.progress.omitted, 2 * PROGRESS_RING_ENTRIES_LEAST - told);
    for (uint32_t i = 0; i < told; i++) {
        ck_assert(pop(&pair, ARENA_COPIED, &entry));
        ck_assert_uint_eq(entry.omitted, 0);
    }
    progress_trace_copied(&pair.progress, &slot);
    progress_trace_copied(&pair.progress, &slot);
    ck_assert(pop(&pair, ARENA_COPIED, &entry));
    ck_assert_uint_eq(entry.omitted, 2 * PROGRESS_RING_ENTRIES_LEAST - told);
    ck_assert_uint_eq(entry.request, 9);
    ck_assert(pop(&pair, ARENA_COPIED, &entry));
    ck_assert_uint_eq(entry.omitted, 0);
    close_pair(&pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress_trace");
    TCase *tests = tcase_create("progress_trace");
    tcase_add_test(tests, copies_are_told_of);
    tcase_add_test(tests, the_callers_own_copy_is_told_of);
    tcase_add_test(tests, nobody_is_told_when_nobody_asks);
    tcase_add_test(tests, the_edges_of_a_trace);
    tcase_add_test(tests, the_ring_keeps_its_room);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
