/* Sends and receives through progress: what is out at once, copies, failures. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/format/wire.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/progress_fixture.h"

struct transfer {
    uint32_t from, to, tag, number;
    uint64_t count; /* of I64 */
};

static struct request_ask ask_of(const struct transfer *it, uint32_t ranks)
{
    struct request_ask ask = {.kind = COLLECTIVE_SEND, .dtype = DTYPE_I64, .count = it->count};
    ask.block = 1 + it->from * ranks + it->to;
    ask.route = route_find(COLLECTIVE_SEND, 0, ask.block, ranks);
    return ask;
}

/* One side of it, by the rank `rank`; `place` is in its arena, 0 where there is nothing to move. */
static int start(struct progress_fixture *fixture, const struct transfer *it, uint32_t rank,
                 uint64_t place, void *copy_to, struct rank_request **made, struct error *error)
{
    struct rank_worker *worker = &fixture->workers[rank];
    struct request_ask ask = ask_of(it, fixture->rank_count);
    uint64_t sequence = WIRE_SEND_SEQUENCE | (uint64_t)it->tag << WIRE_SEND_TAG_SHIFT | it->number;
    void *memory = worker->arena.base + place;
    if (rank == it->from)
        ask.send = memory;
    else
        ask.recv = memory;
    *made = calloc(1, sizeof(**made));
    ck_assert_ptr_nonnull(*made);
    (*made)->rank = rank;
    int code = progress_transfer(&worker->progress, &worker->groups[0], &ask, sequence, rank,
                                 copy_to, &(*made)->request, error);
    if (code != 0)
        free(*made);
    return code;
}

static struct rank_request *started(struct progress_fixture *fixture, const struct transfer *it,
                                    uint32_t rank, uint64_t place, void *copy_to)
{
    struct rank_request *made;
    ck_assert_int_eq(start(fixture, it, rank, place, copy_to, &made, NULL), 0);
    return made;
}

static int64_t *memory_at(struct rank_worker *worker, uint64_t offset)
{
    return (int64_t *)(void *)(worker->arena.base + offset);
}

/* Data that a rank received lies in the arena, or goes from there in pieces to where it is
 * wanted. */
START_TEST(data_is_copied_out_in_pieces)
{
    enum { COUNT = 2 * PROGRESS_COPY_BYTES / 8 + 3 };
    struct progress_fixture fixture;
    ranks_open(&fixture, 2, 2, 5);
    ranks_group(&fixture, 0, 1);
    uint64_t in = ranks_memory(&fixture.workers[0], COUNT * 8);
    uint64_t out = ranks_memory(&fixture.workers[1], COUNT * 8);
    int64_t *wanted = _i ? calloc(COUNT, 8) : memory_at(&fixture.workers[1], out);
    for (int64_t i = 0; i < COUNT; i++)
        memory_at(&fixture.workers[0], in)[i] = 3 * i + 1;
    struct transfer it = {.from = 0, .to = 1, .tag = 9, .count = COUNT};
    started(&fixture, &it, 1, out, _i ? wanted : NULL);
    started(&fixture, &it, 0, in, NULL);
    if (_i) {
        /* between the pieces there is other work, and the request is not complete */
        while (!fixture.workers[1].copying) {
            fake_exchange_step(fixture.exchange);
            ranks_step(&fixture.workers[0]);
            ranks_step(&fixture.workers[1]);
        }
        ck_assert_uint_eq(fixture.workers[1].copy.bytes, PROGRESS_COPY_BYTES);
        ranks_step(&fixture.workers[1]);
        ck_assert(progress_has_work(&fixture.workers[1].progress));
        ck_assert_ptr_null(fixture.workers[1].progress.completed);
    }
    ranks_run(&fixture);
    for (int64_t i = 0; i < COUNT; i++)
        EXPECT(wanted[i] == 3 * i + 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), 1);
        ck_assert(!progress_has_work(&fixture.workers[rank].progress));
        ck_assert_uint_eq(fixture.workers[rank].groups[0].request_count, 0);
    }
    if (_i)
        free(wanted);
    ranks_close(&fixture);
}
END_TEST

/* A rank that has nothing left to do may leave before the others are done. */
START_TEST(others_go_on_without_a_rank_that_has_left)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 3, 2, 6);
    ranks_group(&fixture, 0, 1);
    uint64_t in = ranks_memory(&fixture.workers[0], 8);
    uint64_t out = ranks_memory(&fixture.workers[1], 8);
    *memory_at(&fixture.workers[0], in) = 77;
    struct transfer it = {.from = 0, .to = 1, .count = 1}, lost = {.from = 2, .to = 1, .count = 1};
    started(&fixture, &it, 1, out, NULL);
    started(&fixture, &lost, 2, ranks_memory(&fixture.workers[2], 8), NULL);
    ranks_run(&fixture);
    fake_exchange_detach(fixture.exchange, 2);
    started(&fixture, &it, 0, in, NULL);
    ranks_run(&fixture);
    ck_assert_uint_eq(ranks_free_completed(&fixture.workers[0], 0), 1);
    ck_assert_uint_eq(ranks_free_completed(&fixture.workers[1], 0), 1);
    ck_assert_int_eq(*memory_at(&fixture.workers[1], out), 77);
    struct error error = {.code = ERR_LOST};
    progress_fail(&fixture.workers[2].progress, &error, 1);
    ck_assert_uint_eq(ranks_free_completed(&fixture.workers[2], ERR_LOST), 1);
    ranks_close(&fixture);
}
END_TEST

/* Every rank sends to every other with two tags, and starts all of it in an order of its own, among
 * collectives. */
START_TEST(any_order_among_collectives)
{
    enum { EACH = 6, ALL = RANKS * RANKS * EACH, COUNT = 300 };
    uint64_t seed = 100 + (uint64_t)_i;
    struct progress_fixture fixture;
    ranks_open(&fixture, RANKS, 2, seed);
    ranks_group(&fixture, 0, 2);
    static int64_t received[ALL][COUNT], sums[RANKS][EACH];
    memset(received, 0, sizeof(received));
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        uint32_t order[2 * RANKS * EACH], n = 0, sum = 0;
        for (uint32_t i = 0; i < 2 * RANKS * EACH; i++)
            order[n++] = i;
        for (uint32_t i = n - 1; i > 0; i--) {
            uint32_t j = (uint32_t)ranks_draw(&fixture, i + 1), swap = order[i];
            order[i] = order[j];
            order[j] = swap;
        }
        for (uint32_t i = 0; i < n; i++) {
            bool receives = order[i] % 2;
            uint32_t other = order[i] / 2 / EACH, k = order[i] / 2 % EACH;
            struct transfer it = {.from = receives ? other : rank,
                                  .to = receives ? rank : other,
                                  .tag = k % 2,
                                  .number = k / 2,
                                  .count = k == 0 ? 0 : COUNT};
            uint64_t place = ranks_memory(&fixture.workers[rank], COUNT * 8);
            if (other == rank && receives) { /* nobody sends to itself: something else */
                sums[rank][sum] = rank;
                struct request_ask all = {.kind = COLLECTIVE_ALL_REDUCE,
                                          .dtype = DTYPE_I64,
                                          .count = 1,
                                          .send = &sums[rank][sum],
                                          .recv = &sums[rank][sum]};
                sum++;
                ranks_submit(&fixture, rank, 0, all);
            }
            if (other == rank)
                continue;
            for (uint32_t e = 0; e < COUNT && !receives; e++)
                memory_at(&fixture.workers[rank], place)[e] = rank * 1000000 + k * 1000 + e;
            started(&fixture, &it, rank, place,
                    receives ? received[(rank * RANKS + other) * EACH + k] : NULL);
        }
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0),
                          2 * (RANKS - 1) * EACH + EACH);
        for (uint32_t k = 0; k < EACH; k++)
            EXPECT(sums[rank][k] == RANKS * (RANKS - 1) / 2);
        for (uint32_t other = 0; other < RANKS; other++)
            for (uint32_t k = 1; k < EACH && other != rank; k++)
                for (uint32_t e = 0; e < COUNT; e++)
                    EXPECT(received[(rank * RANKS + other) * EACH + k][e] ==
                           other * 1000000 + k * 1000 + e);
    }
    ranks_close(&fixture);
}
END_TEST

/* Both ranks ask for all that they get before they send anything, and then for a sum: more than may
 * be out. Receives that wait keep neither sends nor collectives back. */
START_TEST(sends_receives_and_collectives_do_not_share_credits)
{
    enum { COUNT = 3 * PROGRESS_TRANSFERS_MAX };
    struct progress_fixture fixture;
    ranks_open(&fixture, 2, 2, 77);
    ranks_group(&fixture, 0, 1);
    static int64_t sums[2][PROGRESS_SUBMITTED_MAX + 9];
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct rank_worker *worker = &fixture.workers[rank];
        for (uint32_t way = 0; way < 2; way++) {
            for (uint32_t i = 0; i < COUNT; i++) {
                struct transfer it = {.from = way ? rank : 1 - rank,
                                      .to = way ? 1 - rank : rank,
                                      .number = i,
                                      .count = 1};
                started(&fixture, &it, rank, ranks_memory(worker, 8), NULL);
            }
            ck_assert_uint_eq(worker->progress.transfers[1], PROGRESS_TRANSFERS_MAX);
            ck_assert_uint_eq(worker->progress.transfers[0], way ? PROGRESS_TRANSFERS_MAX : 0);
        }
        for (uint32_t i = 0; i < PROGRESS_SUBMITTED_MAX + 9; i++)
            ranks_submit(&fixture, rank, 0,
                         (struct request_ask){.kind = COLLECTIVE_ALL_REDUCE,
                                              .dtype = DTYPE_I64,
                                              .count = 1,
                                              .send = &sums[rank][i],
                                              .recv = &sums[rank][i]});
        ck_assert_uint_eq(worker->progress.submitted, PROGRESS_SUBMITTED_MAX);
        ck_assert(!worker->progress.failed);
    }
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0),
                          2 * COUNT + PROGRESS_SUBMITTED_MAX + 9);
        ck_assert_uint_eq(fixture.workers[rank].progress.transfers[0], 0);
        ck_assert_uint_eq(fixture.workers[rank].progress.transfers[1], 0);
        ck_assert_uint_eq(fixture.workers[rank].progress.submitted, 0);
    }
    ranks_close(&fixture);
}
END_TEST

/* Not submitted, out, and done but not yet copied: all fail with the group, or the job. */
START_TEST(what_is_under_way_fails)
{
    enum { WAITING = 5, COUNT = PROGRESS_COPY_BYTES / 8 + 1 };
    struct progress_fixture fixture;
    ranks_open(&fixture, 2, 2, 3);
    ranks_group(&fixture, 0, 1);
    ranks_group(&fixture, 1, 1);
    struct rank_worker *worker = &fixture.workers[1];
    static int64_t wanted[COUNT];
    memset(wanted, 0, sizeof(wanted));
    struct transfer it = {.from = 0, .to = 1, .tag = 4, .count = COUNT};
    started(&fixture, &it, 1, ranks_memory(worker, sizeof(wanted)), wanted);
    uint64_t place = ranks_memory(&fixture.workers[0], sizeof(wanted));
    memset(memory_at(&fixture.workers[0], place), 1, sizeof(wanted));
    started(&fixture, &it, 0, place, NULL);
    while (!worker->copying) {
        fake_exchange_step(fixture.exchange);
        ranks_step(&fixture.workers[0]);
        ranks_step(worker);
    }
    ranks_step(worker); /* the first piece */
    ck_assert_ptr_nonnull(worker->progress.to_copy);
    for (uint32_t i = 0; i < PROGRESS_TRANSFERS_MAX + WAITING; i++) {
        struct transfer other = {.from = 1, .to = 0, .number = i, .count = 1};
        started(&fixture, &other, 1, ranks_memory(worker, 8), NULL);
    }
    struct error error, text;
    error_set(&error, ERR_LOST, "rank 0 is gone");
    if (_i)
        progress_fail(&worker->progress, &error, 1);
    else
        progress_fail_group(&worker->progress, &worker->groups[0], &error, 1);
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_LOST), PROGRESS_TRANSFERS_MAX + WAITING + 1);
    ck_assert_int_eq(wanted[COUNT - 1], 0);
    ck_assert(!progress_has_work(&worker->progress));
    ck_assert_uint_eq(worker->progress.transfers[0] + worker->progress.transfers[1], 0);
    struct rank_request *later;
    ck_assert_int_eq(start(&fixture, &it, 1, worker->arena.data_offset, NULL, &later, &text),
                     ERR_LOST);
    ck_assert_str_eq(text.text, error.text);
    ck_assert_uint_eq(ranks_free_completed(&fixture.workers[0], 0), 1);
    progress_group_remove(&worker->progress, &worker->groups[0]);
    ranks_close(&fixture);
}
END_TEST

/* The next copy of the worker, which is of a device's, and now under way there. */
static struct progress_copy copy_begun(struct rank_worker *worker)
{
    struct progress_copy copy;
    ck_assert_int_eq(progress_work(&worker->progress, 1, &copy), PROGRESS_COPY);
    ck_assert(copy.on_device && !copy.slot);
    progress_copying(&worker->progress, &copy);
    return copy;
}

static void copy_ended(struct rank_worker *worker, const struct progress_copy *copy)
{
    memcpy(copy->to, copy->from, copy->bytes);
    progress_copied(&worker->progress, copy, 1);
}

/* One side of it on a device; the data goes through the arena. */
static struct rank_request *started_on_device(struct progress_fixture *fixture,
                                              const struct transfer *it, uint32_t rank, void *data)
{
    struct rank_worker *worker = &fixture->workers[rank];
    struct request_ask ask = ask_of(it, fixture->rank_count);
    struct rank_request *made = calloc(1, sizeof(*made));
    void *memory = worker->arena.base + ranks_memory(worker, it->count * 8 + 8);
    ask.on_device = true;
    ask.send = rank == it->from ? memory : NULL;
    ask.recv = rank == it->from ? NULL : memory;
    uint64_t sequence = WIRE_SEND_SEQUENCE | (uint64_t)it->tag << WIRE_SEND_TAG_SHIFT | it->number;
    ck_assert_int_eq(progress_transfer(&worker->progress, &worker->groups[0], &ask, sequence, rank,
                                       data, &made->request, NULL),
                     0);
    return made;
}

/* A send is submitted when its data is in the arena, which begins when its stream has come to it;
 * what is received waits there for its stream. */
START_TEST(a_devices_data_goes_through_the_arena)
{
    enum { PIECES = 2, COUNT = PROGRESS_COPY_BYTES / 8 + 77 };
    struct progress_fixture fixture;
    struct progress_copy copies[PIECES], none;
    ranks_open(&fixture, 2, 2, 3);
    ranks_group(&fixture, 0, 1);
    struct rank_worker *from = &fixture.workers[0], *to = &fixture.workers[1];
    int64_t *sent = calloc(COUNT, 8), *wanted = calloc(COUNT, 8);
    for (int64_t i = 0; i < COUNT; i++)
        sent[i] = 5 * i + 2;
    struct transfer it = {.from = 0, .to = 1, .count = COUNT};
    struct rank_request *send = started_on_device(&fixture, &it, 0, sent);
    struct rank_request *receive = started_on_device(&fixture, &it, 1, wanted);
    ranks_run(&fixture);
    ck_assert_uint_eq(from->progress.transfers[0], 0);
    ck_assert_uint_eq(to->progress.transfers[1], 1);
    char text[160];
    request_describe(&send->request, 3, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "number 0: its stream has not come to it"));
    request_describe(&receive->request, 3, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "number 0: submitted"));
    ck_assert(!progress_ready(&from->progress, &send->request, &none));
    for (uint32_t i = 0; i < PIECES; i++)
        copies[i] = copy_begun(from);
    ck_assert_int_eq(progress_work(&from->progress, 1, &none), PROGRESS_IDLE);
    for (uint32_t i = 0; i < PIECES; i++) {
        ck_assert_uint_eq(from->progress.transfers[0], 0);
        copy_ended(from, &copies[i]);
    }
    ck_assert_uint_eq(from->progress.transfers[0], 1);
    ranks_run(&fixture);
    ck_assert_uint_eq(ranks_free_completed(from, 0), 1);
    ck_assert_uint_eq(ranks_free_completed(to, 0), 0);
    request_describe(&receive->request, 3, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "number 0: its stream has not come to it"));
    ck_assert(!progress_ready(&to->progress, &receive->request, &none));
    for (uint32_t i = 0; i < PIECES; i++) {
        copies[i] = copy_begun(to);
        ck_assert_uint_eq(ranks_free_completed(to, 0), 0);
        copy_ended(to, &copies[i]);
    }
    ck_assert_uint_eq(ranks_free_completed(to, 0), 1);
    ck_assert_int_eq(memcmp(sent, wanted, COUNT * 8), 0);
    ck_assert_uint_eq(from->groups[0].request_count + to->groups[0].request_count, 0);
    free(sent);
    free(wanted);
    ranks_close(&fixture);
}
END_TEST

/* A request that fails is complete when its copies under way have ended. In turn: it waits for its
 * stream, has one piece under way, both, and is loaded. */
START_TEST(a_devices_transfers_fail)
{
    enum { COUNT = 2 * PROGRESS_COPY_BYTES / 8 };
    struct progress_fixture fixture;
    struct progress_copy copies[2], none;
    ranks_open(&fixture, 2, 2, 3);
    ranks_group(&fixture, 0, 1);
    struct rank_worker *worker = &fixture.workers[0];
    int64_t *data = calloc(COUNT, 8);
    struct transfer it = {.from = 0, .to = 1, .count = COUNT};
    struct rank_request *send = started_on_device(&fixture, &it, 0, data);
    uint32_t begun = _i == 0 ? 0 : _i == 1 ? 1 : 2;
    if (_i > 0)
        progress_ready(&worker->progress, &send->request, &none);
    for (uint32_t i = 0; i < begun; i++)
        copies[i] = copy_begun(worker);
    for (uint32_t i = 0; i < begun && _i == 3; i++)
        copy_ended(worker, &copies[i]);
    struct error error;
    error_set(&error, ERR_LOST, "rank 1 is gone");
    progress_fail_group(&worker->progress, &worker->groups[0], &error, 1);
    ck_assert(!worker->progress.to_copy);
    for (uint32_t i = 0; i < begun && _i < 3; i++) {
        ck_assert_uint_eq(ranks_free_completed(worker, ERR_LOST), 0);
        ck_assert_uint_gt(worker->groups[0].request_count, 0);
        progress_copied(&worker->progress, &copies[i], 1);
    }
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_LOST), 1);
    ck_assert_uint_eq(worker->groups[0].request_count, 0);
    ck_assert_uint_eq(worker->progress.transfers[0], 0);
    free(data);
    ranks_close(&fixture);
}
END_TEST

START_TEST(too_large_is_refused)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 2, 2, 3);
    ranks_group(&fixture, 0, 1);
    struct transfer it = {.from = 0, .to = 1, .count = (uint64_t)LAYOUT_MAX_CHUNKS * CHUNK_BYTES};
    struct rank_request *made;
    struct error error;
    ck_assert_int_eq(start(&fixture, &it, 0, 4096, NULL, &made, &error), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "send: 4294967296 elements are too many"));
    ck_assert_ptr_null(fixture.workers[0].groups[0].transfers);
    ranks_close(&fixture);
}
END_TEST

/* Words that a waiter is told when its time is over. */
START_TEST(transfers_are_described)
{
    struct progress_fixture fixture;
    ranks_open(&fixture, 2, 2, 3);
    ranks_group(&fixture, 0, 1);
    struct transfer it = {.from = 0, .to = 1, .tag = WIRE_SEND_TAG_MAX, .number = 7, .count = 2};
    struct rank_request *send =
        started(&fixture, &it, 0, ranks_memory(&fixture.workers[0], 16), NULL);
    struct rank_request *receive =
        started(&fixture, &it, 1, ranks_memory(&fixture.workers[1], 16), NULL);
    char text[160];
    request_describe(&send->request, 3, text, sizeof(text));
    ck_assert_str_eq(
        text, "send of 2 int64 to rank 1 of group 3 with tag 2147483647, number 7: submitted");
    receive->request.state = REQUEST_QUEUED;
    request_describe(&receive->request, 3, text, sizeof(text));
    ck_assert_str_eq(text, "recv of 2 int64 from rank 0 of group 3 with tag 2147483647, number 7: "
                           "not submitted yet");
    receive->request.state = REQUEST_SUBMITTED;
    ranks_run(&fixture);
    for (uint32_t rank = 0; rank < 2; rank++)
        ck_assert_uint_eq(ranks_free_completed(&fixture.workers[rank], 0), 1);
    ranks_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress_transfer");
    TCase *tests = tcase_create("transfers");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, data_is_copied_out_in_pieces, 0, 2);
    tcase_add_test(tests, others_go_on_without_a_rank_that_has_left);
    tcase_add_loop_test(tests, any_order_among_collectives, 0, 12);
    tcase_add_test(tests, sends_receives_and_collectives_do_not_share_credits);
    tcase_add_loop_test(tests, what_is_under_way_fails, 0, 2);
    tcase_add_test(tests, a_devices_data_goes_through_the_arena);
    tcase_add_loop_test(tests, a_devices_transfers_fail, 0, 4);
    tcase_add_test(tests, too_large_is_refused);
    tcase_add_test(tests, transfers_are_described);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
