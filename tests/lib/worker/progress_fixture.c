#include "tests/lib/worker/progress_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t ranks_draw(struct progress_fixture *fixture, uint64_t below)
{
    fixture->random ^= fixture->random << 13;
    fixture->random ^= fixture->random >> 7;
    fixture->random ^= fixture->random << 17;
    return fixture->random % below;
}

uint64_t ranks_memory(struct rank_worker *worker, uint64_t bytes)
{
    uint64_t offset = worker->next_offset;
    worker->next_offset += (bytes + 63) / 64 * 64;
    ck_assert_uint_le(worker->next_offset, worker->arena.total_bytes);
    return offset;
}

void ranks_open(struct progress_fixture *fixture, uint32_t ranks, uint32_t slots, uint64_t seed)
{
    memset(fixture, 0, sizeof(*fixture));
    fixture->rank_count = ranks;
    fixture->random = seed * 0x2545f4914f6cdd1dull + 7;
    fixture->exchange = fake_exchange_create(seed, NULL);
    for (uint32_t i = 0; i < ranks; i++) {
        struct rank_worker *worker = &fixture->workers[i];
        ck_assert_int_eq(arena_create(&worker->arena, FIXTURE_ARENA_BYTES,
                                      PROGRESS_RING_ENTRIES_LEAST, &worker->fd, NULL),
                         0);
        ck_assert_int_eq(arena_attach(&worker->daemon_view, worker->fd, FIXTURE_ARENA_BYTES, NULL),
                         0);
        fake_exchange_attach(fixture->exchange, i, &worker->daemon_view);
        worker->next_offset = worker->arena.data_offset;
        uint64_t offset = ranks_memory(worker, (uint64_t)slots * CHUNK_BYTES);
        ck_assert_int_eq(
            progress_init(&worker->progress, &worker->arena, offset, CHUNK_BYTES, slots), 0);
    }
}

void ranks_close(struct progress_fixture *fixture)
{
    fake_exchange_destroy(fixture->exchange);
    for (uint32_t i = 0; i < fixture->rank_count; i++) {
        struct rank_worker *worker = &fixture->workers[i];
        progress_clear(&worker->progress);
        arena_unmap(&worker->arena);
        arena_unmap(&worker->daemon_view);
        close(worker->fd);
    }
}

static const uint32_t two_weights[2] = {1, 2};

void ranks_group(struct progress_fixture *fixture, uint32_t number, uint32_t servers)
{
    uint32_t ranks[RANKS];
    struct layout_rule rule = {servers, two_weights, CHUNK_BYTES, 128, false, false};
    for (uint32_t i = 0; i < fixture->rank_count; i++) {
        struct rank_worker *worker = &fixture->workers[i];
        ranks[i] = i;
        worker->groups[number] = (struct progress_group){.number = number, .rule = rule};
        ck_assert_int_eq(progress_group_add(&worker->progress, &worker->groups[number],
                                            ranks_memory(worker, CHUNK_BYTES), NULL),
                         0);
    }
    fake_exchange_open_group(fixture->exchange, number, ranks, fixture->rank_count, &rule);
}

bool ranks_step(struct rank_worker *worker)
{
    if (worker->copying) {
        memcpy(worker->copy.to, worker->copy.from, worker->copy.bytes);
        progress_copied(&worker->progress, &worker->copy, 1);
        worker->copying = false;
        progress_doorbell_due(&worker->progress);
        return true;
    }
    enum progress_result result = progress_work(&worker->progress, 1, &worker->copy);
    progress_doorbell_due(&worker->progress);
    worker->copying = result == PROGRESS_COPY;
    return result != PROGRESS_IDLE;
}

void ranks_run(struct progress_fixture *fixture)
{
    for (unsigned idle = 0; idle < 3;) {
        bool moved = false;
        for (uint32_t i = 0; i < fixture->rank_count; i++)
            for (uint64_t n = ranks_draw(fixture, 4); n > 0; n--)
                moved |= ranks_step(&fixture->workers[i]);
        moved |= fake_exchange_step(fixture->exchange);
        if (!moved)
            for (uint32_t i = 0; i < fixture->rank_count; i++)
                moved |= ranks_step(&fixture->workers[i]);
        idle = moved ? 0 : idle + 1;
    }
}

struct rank_request *ranks_submit_blocks(struct progress_fixture *fixture, uint32_t rank,
                                         uint32_t group, const struct request_ask *whole,
                                         const struct request_ask *blocks, uint32_t block_count)
{
    struct rank_request *made = calloc(1, sizeof(*made));
    struct rank_worker *worker = &fixture->workers[rank];
    ck_assert_ptr_nonnull(made);
    made->rank = rank;
    ck_assert_int_eq(progress_submit(&worker->progress, &worker->groups[group], whole, blocks,
                                     block_count, rank, &made->request, NULL),
                     0);
    return made;
}

struct rank_request *ranks_submit(struct progress_fixture *fixture, uint32_t rank, uint32_t group,
                                  struct request_ask ask)
{
    ck_assert_int_eq(request_check(&ask, rank, fixture->rank_count, NULL), 0);
    return ranks_submit_blocks(fixture, rank, group, &ask, NULL, 0);
}

uint32_t ranks_free_completed(struct rank_worker *worker, int result)
{
    uint32_t count = 0;
    struct request *request;
    while ((request = progress_next_completed(&worker->progress))) {
        ck_assert_int_eq(request->state, REQUEST_COMPLETE);
        ck_assert_int_eq(request->result, result);
        ck_assert_uint_eq(request->completed_ns, 1);
        request_clear(request);
        free(request);
        count++;
    }
    return count;
}
