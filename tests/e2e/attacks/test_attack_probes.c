/* One user's receives from any rank, which find nobody, take neither the engine's time nor memory
 * from others. */
#include "common/format/wire.h"
#include "common/reduce/dtype.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/hostile_rank.h"

#define SENT_TAG 5
#define UNUSED_TAG 77
/* A collective took 4.8 s. */
#define MOST_MS 2500
/* Receives of 160 ranks took 40 MiB. */
#define MOST_KIB (16l << 10)

static struct undisturbed *victim;

static void setup(void)
{
    victim = undisturbed_start();
}

static void teardown(void)
{
    undisturbed_finish(victim, MOST_MS);
}

static void hostile_push(struct hostile_rank *rank, const struct arena_submission *submission)
{
    ck_assert(arena_push_submission(&rank->arena, submission));
}

/* To one that does not receive them. */
static void hostile_send(struct hostile_rank *rank, int from, int to, int size, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct arena_submission it = {.type = ARENA_SUBMIT,
                                      .kind = COLLECTIVE_SEND,
                                      .dtype = DTYPE_F32,
                                      .request = i,
                                      .sequence = WIRE_SEND_SEQUENCE | i |
                                                  (uint64_t)SENT_TAG << WIRE_SEND_TAG_SHIFT,
                                      .count = 1,
                                      .in_offset = rank->arena.data_offset,
                                      .out_offset = rank->arena.data_offset,
                                      .block = 1 + (uint32_t)(from * size + to)};
        hostile_push(rank, &it);
    }
    hostile_ring(rank);
}

static void hostile_receive_any(struct hostile_rank *rank, uint32_t tag, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct arena_submission it = {.type = ARENA_SUBMIT,
                                      .kind = COLLECTIVE_SEND,
                                      .request = 5000 + i,
                                      .sequence = WIRE_SEND_SEQUENCE | (uint64_t)tag
                                                                           << WIRE_SEND_TAG_SHIFT,
                                      .in_offset = rank->arena.data_offset,
                                      .flags = ARENA_FLAG_ANY};
        hostile_push(rank, &it);
    }
    hostile_ring(rank);
}

static bool hostile_is_read(void *context)
{
    const struct hostile_rank *rank = context;
    return arena_submission_room(&rank->arena) == HOSTILE_RING_ENTRIES;
}

/* And what it made the daemon do has had its turns. */
static void hostile_wait(struct hostile_rank *ranks, int size)
{
    for (int i = 0; i < size; i++)
        ck_assert(wait_until(hostile_is_read, &ranks[i], CLUSTER_PATIENCE_MS));
    undisturbed_goes_on(victim, 10);
}

/* Among many sends, with another tag, or of numbers that they want no more. */
START_TEST(test_among_many_sends)
{
    enum { RANKS = 48, SENDS = 900, RECEIVES = 10 };
    struct hostile_rank *ranks = hostile_job_start(undisturbed_cluster(victim), "sends", RANKS);
    for (int i = 0; i < RANKS; i++)
        hostile_send(&ranks[i], i, (i + 1) % RANKS, RANKS, SENDS);
    hostile_wait(ranks, RANKS);
    for (int i = 0; i < RANKS; i++) {
        uint32_t *numbers = (uint32_t *)(void *)(ranks[i].arena.base + ranks[i].arena.data_offset);
        for (int from = 0; from < RANKS; from++)
            numbers[from] = SENDS;
        hostile_receive_any(&ranks[i], _i == 0 ? UNUSED_TAG : SENT_TAG, RECEIVES);
    }
    hostile_wait(ranks, RANKS);
    hostile_job_end(ranks, RANKS);
}
END_TEST

START_TEST(test_many_ranks)
{
    enum { RANKS = 160, RECEIVES = 10 };
    pid_t daemon = undisturbed_cluster(victim)->nodes[0].daemon->pid;
    struct hostile_rank *ranks = hostile_job_start(undisturbed_cluster(victim), "receives", RANKS);
    undisturbed_goes_on(victim, 10);
    long before_KiB = process_resident_KiB(daemon);
    for (int i = 0; i < RANKS; i++)
        hostile_receive_any(&ranks[i], UNUSED_TAG, RECEIVES);
    hostile_wait(ranks, RANKS);
    long more_KiB = process_resident_KiB(daemon) - before_KiB;
    ck_assert_msg(more_KiB < MOST_KIB, "%ld KiB more", more_KiB);
    hostile_job_end(ranks, RANKS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attack_probes");
    TCase *tests = tcase_create("attack_probes");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, test_among_many_sends, 0, 2);
    tcase_add_test(tests, test_many_ranks);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
