/* Attacks on the engine: one user's ranks hand it as much as they can, as awkwardly as they can,
 * and do not hold up the collectives of another user. */
#include <poll.h>
#include <string.h>

#include "common/format/arena.h"
#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/hostile_rank.h"

#define SUBMISSIONS 40000u
#define UNREAD_TRIES 2000
/* A collective takes some milliseconds beside the attack, on a busy machine tens of them. It took
 * 12 s. */
#define MOST_MS 3000

static struct undisturbed *victim;

static void setup(void)
{
    victim = undisturbed_start();
}

static void teardown(void)
{
    undisturbed_finish(victim, MOST_MS);
}

/* Each of a smaller priority than all before it. */
static void hostile_submit(struct hostile_rank *rank, uint32_t count)
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
        for (int tries = 0; !arena_push_submission(&rank->arena, &it); tries++) {
            if (tries == UNREAD_TRIES)
                return; /* it is not read any more */
            hostile_ring(rank);
            poll(NULL, 0, 1); /* for room in the ring, of which nobody tells */
        }
    }
    hostile_ring(rank);
}

/* A rank alone: what it submits is done as fast as the engine takes it. Then it leaves. */
START_TEST(test_falling_priorities_and_a_leave)
{
    struct hostile_rank *rank = hostile_job_start(undisturbed_cluster(victim), "alone", 1);
    hostile_submit(rank, SUBMISSIONS);
    hostile_leave(rank);
    hostile_hears(rank, "\"left\"", "\"failed\"");
    hostile_job_end(rank, 1);
}
END_TEST

/* A rank of two submits nothing: the submissions of the other one are kept, and that has a
 * limit. */
START_TEST(test_more_requests_than_there_may_be)
{
    struct hostile_rank *ranks = hostile_job_start(undisturbed_cluster(victim), "waiting", 2);
    hostile_submit(&ranks[0], SUBMISSIONS);
    const char *answer = hostile_hears(&ranks[0], "\"left\"", "\"failed\"");
    hostile_leave(&ranks[0]);
    ck_assert_msg(strstr(answer, "more than 32768 requests under way") != NULL, "%s", answer);
    hostile_job_end(ranks, 2);
}
END_TEST

/* Ranks that have as many requests as they may, all of which can be issued at once. */
START_TEST(test_many_ranks_with_many_requests)
{
    enum { RANKS = 12, REQUESTS = 32000 };
    struct hostile_rank *ranks = hostile_job_start(undisturbed_cluster(victim), "many", RANKS);
    for (int i = 0; i < RANKS; i++)
        hostile_submit(&ranks[i], REQUESTS);
    for (int i = 0; i < RANKS; i++)
        hostile_leave(&ranks[i]);
    for (int i = 0; i < RANKS; i++) {
        const char *answer = hostile_hears(&ranks[i], "\"left\"", "\"failed\"");
        ck_assert_msg(strstr(answer, "\"left\"") != NULL, "%s", answer);
    }
    hostile_job_end(ranks, RANKS);
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
