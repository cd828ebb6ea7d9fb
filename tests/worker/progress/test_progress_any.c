/* Receives from any rank through progress: the test plays the daemon, and the caller that says how
 * those go on that have found a sender. */
#include <stdlib.h>
#include <string.h>

#include "common/format/wire.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/progress_fixture.h"

#define TAG(tag) (WIRE_SEND_SEQUENCE | (uint64_t)(tag) << WIRE_SEND_TAG_SHIFT)

static struct progress_fixture fixture;
static struct rank_worker *worker; /* rank 0 of three */

static void open_ranks(void)
{
    ranks_open(&fixture, 3, 2, 5);
    ranks_group(&fixture, 0, 1);
    worker = &fixture.workers[0];
}

static struct rank_request *start(uint32_t tag)
{
    struct rank_request *made = calloc(1, sizeof(*made));
    ck_assert_ptr_nonnull(made);
    struct request_ask ask = {.kind = COLLECTIVE_SEND, .dtype = DTYPE_I64, .count = 1};
    ask.block = 1 + 1 * 3 + 0;
    ask.route = route_find(COLLECTIVE_SEND, 0, ask.block, 3);
    ask.recv = worker->arena.base + ranks_memory(worker, 8);
    uint64_t numbers = ranks_memory(worker, 12);
    ck_assert_int_eq(progress_any(&worker->progress, &worker->groups[0], &ask, TAG(tag), 0, NULL,
                                  numbers, &made->request, NULL),
                     0);
    ck_assert_uint_eq(made->request.numbers_offset, numbers);
    return made;
}

/* Return what the daemon reads next; its type is 0 when there is nothing. */
static struct arena_submission taken(void)
{
    struct arena_submission submission = {0};
    ck_assert_int_ge(arena_pop_submission(&worker->daemon_view, &submission), 0);
    return submission;
}

/* The daemon answers, and the library reads it. */
static void answer(uint64_t request, uint32_t source)
{
    struct progress_copy copy;
    ck_assert(arena_push_completion(
        &worker->daemon_view,
        &(struct arena_completion){
            .type = ARENA_REQUEST_DONE, .request = request, .chunk = source, .count = 1}));
    progress_work(&worker->progress, 1, &copy);
}

static void found(struct request *request, uint32_t source, uint32_t number)
{
    uint32_t block = 1 + source * 3 + 0;
    struct route route = route_find(COLLECTIVE_SEND, 0, block, 3);
    progress_any_found(&worker->progress, request, block, &route,
                       TAG(0) | (request->sequence & ~WIRE_SEND_SEQUENCE) | number);
}

START_TEST(one_looks_and_finds)
{
    open_ranks();
    struct rank_request *made = start(7);
    struct arena_submission it = taken();
    ck_assert_int_eq(it.type, ARENA_SUBMIT);
    ck_assert_int_eq(it.kind, COLLECTIVE_SEND);
    ck_assert_uint_eq(it.flags, ARENA_FLAG_ANY);
    ck_assert_uint_eq(it.sequence, TAG(7));
    ck_assert_uint_eq(it.block, 0);
    ck_assert_uint_eq(it.in_offset, made->request.numbers_offset);
    char text[160];
    request_describe(&made->request, 4, text, sizeof(text));
    ck_assert_str_eq(text, "recv of 1 int64 from any rank of group 4 with tag 7: nobody has sent "
                           "it yet");
    ck_assert_ptr_null(progress_next_matched(&worker->progress));
    answer(it.request, 2);
    ck_assert(progress_has_work(&worker->progress));
    struct request *request = progress_next_matched(&worker->progress);
    ck_assert_ptr_eq(request, &made->request);
    ck_assert_uint_eq(request->any_source, 2);
    ck_assert_ptr_null(progress_next_matched(&worker->progress));
    if (_i) { /* it was taken otherwise */
        progress_any_again(&worker->progress, request);
        it = taken();
        ck_assert_uint_eq(it.flags, ARENA_FLAG_ANY);
        answer(it.request, 1);
        ck_assert_ptr_eq(progress_next_matched(&worker->progress), request);
    }
    found(request, _i ? 1 : 2, 30);
    it = taken();
    ck_assert_uint_eq(it.flags, 0);
    ck_assert_uint_eq(it.sequence, TAG(7) | 30);
    ck_assert_uint_eq(it.block, 1 + (_i ? 1u : 2u) * 3);
    ck_assert_uint_eq(worker->progress.any, 0);
    ck_assert_uint_eq(worker->progress.transfers[1], 1);
    answer(it.request, 0);
    ck_assert_uint_eq(ranks_free_completed(worker, 0), 1);
    ck_assert(!progress_has_work(&worker->progress));
    ranks_close(&fixture);
}
END_TEST

/* Whichever has found somebody, the oldest with its tag gets it: one that looks, one that is still
 * to be submitted, one that has found somebody too. */
START_TEST(the_oldest_gets_it)
{
    open_ranks();
    struct rank_request *other = start(1), *first = start(2), *second = start(2), *third = start(2);
    uint64_t numbers[] = {taken().request, taken().request, taken().request, taken().request};
    (void)numbers[0];
    uint64_t place = third->request.numbers_offset;
    if (_i == 1) { /* the first looks again, behind as many as may */
        answer(numbers[1], 1);
        ck_assert_ptr_eq(progress_next_matched(&worker->progress), &first->request);
        for (uint32_t i = 0; i < PROGRESS_ANY_MAX; i++)
            start(3);
        progress_any_again(&worker->progress, &first->request);
        ck_assert_int_eq(first->request.state, REQUEST_QUEUED);
    } else if (_i == 2) {
        answer(numbers[3], 1);
        answer(numbers[1], 2);
    }
    if (_i < 2)
        answer(numbers[3], 1);
    ck_assert_ptr_eq(progress_next_matched(&worker->progress), &first->request);
    ck_assert_uint_eq(first->request.any_source, 1);
    ck_assert_uint_eq(first->request.numbers_offset, place);
    found(&first->request, 1, 0);
    if (_i == 0) { /* the third looks in its place */
        ck_assert_int_eq(third->request.state, REQUEST_SUBMITTED);
        answer(numbers[1], 2);
    } else if (_i == 1) {
        ck_assert_int_eq(third->request.state, REQUEST_QUEUED);
        answer(numbers[2], 2);
    }
    ck_assert_ptr_eq(progress_next_matched(&worker->progress), &second->request);
    ck_assert_uint_eq(second->request.any_source, 2);
    ck_assert_ptr_null(progress_next_matched(&worker->progress));
    ck_assert_int_eq(other->request.state, REQUEST_SUBMITTED);
    found(&second->request, 2, 0);
    struct error error;
    error_set(&error, ERR_LOST, "the test is over");
    progress_fail(&worker->progress, &error, 1);
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_LOST), _i == 1 ? 4 + PROGRESS_ANY_MAX : 4);
    ranks_close(&fixture);
}
END_TEST

START_TEST(so_many_look_at_once)
{
    enum { MORE = 5 };
    open_ranks();
    for (uint32_t i = 0; i < PROGRESS_ANY_MAX + MORE; i++)
        start(i);
    ck_assert_uint_eq(worker->progress.any, PROGRESS_ANY_MAX);
    uint64_t first = taken().request;
    for (uint32_t i = 1; i < PROGRESS_ANY_MAX; i++)
        ck_assert_uint_eq(taken().sequence, TAG(i));
    ck_assert_int_eq(taken().type, 0);
    answer(first, 1);
    found(progress_next_matched(&worker->progress), 1, 0);
    struct progress_copy copy;
    progress_work(&worker->progress, 1, &copy);
    unsigned looks = 0;
    for (struct arena_submission it = taken(); it.type; it = taken())
        looks += it.flags == ARENA_FLAG_ANY && it.sequence == TAG(PROGRESS_ANY_MAX);
    ck_assert_uint_eq(looks, 1);
    /* failed in every state: submitted, waiting, found, receiving */
    struct error error;
    error_set(&error, ERR_LOST, "rank 1 is gone");
    if (_i)
        progress_fail(&worker->progress, &error, 1);
    else
        progress_fail_group(&worker->progress, &worker->groups[0], &error, 1);
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_LOST), PROGRESS_ANY_MAX + MORE);
    ck_assert_uint_eq(worker->progress.any, 0);
    ck_assert(!progress_has_work(&worker->progress));
    ck_assert_ptr_null(progress_next_matched(&worker->progress));
    ranks_close(&fixture);
}
END_TEST

START_TEST(one_that_has_found_fails)
{
    open_ranks();
    start(1);
    answer(taken().request, 1);
    ck_assert_ptr_nonnull(worker->progress.matched);
    struct error error;
    error_set(&error, ERR_MISMATCH, "they disagree");
    progress_fail_group(&worker->progress, &worker->groups[0], &error, 1);
    ck_assert_ptr_null(worker->progress.matched);
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_MISMATCH), 1);
    ranks_close(&fixture);
}
END_TEST

START_TEST(nobody_is_left)
{
    open_ranks();
    struct rank_request *made = start(1);
    answer(taken().request, UINT32_MAX);
    ck_assert_ptr_null(progress_next_matched(&worker->progress));
    ck_assert_str_eq(made->request.error_text,
                     "recv from any rank: all other ranks of the group have left the job");
    ck_assert_uint_eq(ranks_free_completed(worker, ERR_LOST), 1);
    ck_assert_uint_eq(worker->progress.any, 0);
    ranks_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress_any");
    TCase *tests = tcase_create("any");
    tcase_add_loop_test(tests, one_looks_and_finds, 0, 2);
    tcase_add_loop_test(tests, the_oldest_gets_it, 0, 3);
    tcase_add_loop_test(tests, so_many_look_at_once, 0, 2);
    tcase_add_test(tests, one_that_has_found_fails);
    tcase_add_test(tests, nobody_is_left);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
