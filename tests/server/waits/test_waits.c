/* The account of whom a job waits for, fed with events at made-up times. */
#include "server/waits/waits.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

#define MS UINT64_C(1000000)
#define NODES 6

static struct waits_node nodes[NODES];
static struct waits waits;

static void setup(void)
{
    memset(nodes, 0, sizeof(nodes));
    waits_init(&waits, nodes, NODES, 100 * MS, 7 * MS);
}

static struct waits_figures told_at(uint64_t now_ns)
{
    struct waits_figures figures;
    waits_tell(&waits, 0, now_ns, 7 * MS, &figures);
    return figures;
}

START_TEST(nothing_is_told_of_nothing)
{
    struct waits_figures told = told_at(100 * MS);
    ck_assert_uint_eq(told.window_us, 0);
    ck_assert_uint_eq(told.collectives, 0);
    ck_assert_uint_eq(told.step, 0);
    ck_assert_uint_eq(told.ranks, 0);
    ck_assert_uint_eq(told.self_us, 0);
    ck_assert_uint_eq(told.rank[0].rank, WAITS_NOBODY);
    ck_assert_uint_eq(told.node[0].node, WAITS_NOBODY);
}
END_TEST

START_TEST(waits_that_overlap_count_once)
{
    struct wait wait = {0};
    wait_begin(&wait, 10 * MS);
    wait_begin(&wait, 12 * MS);
    wait_end(&wait, 14 * MS);
    wait_begin(&wait, 15 * MS);
    wait_end(&wait, 16 * MS);
    wait_end(&wait, 20 * MS);
    ck_assert_uint_eq(wait.open, 0);
    ck_assert_uint_eq(wait.ns[0], 10 * MS);
    ck_assert_uint_eq(wait.times[0], 3);
    wait_begin(&wait, 30 * MS);
    wait_end(&wait, 29 * MS); /* a clock of another round */
    ck_assert_uint_eq(wait.ns[0], 10 * MS);
}
END_TEST

/* Before its first byte it is late; then its bytes are under way. */
START_TEST(a_node_is_waited_for_before_and_behind_its_first_byte)
{
    waits_node_lacks(&waits, 3, 8, 200 * MS);
    waits_node_lacks(&waits, 3, 8, 201 * MS);
    waits_node_heard(&waits, 3, 220 * MS);
    waits_node_done(&waits, 3, 220 * MS);
    waits_node_lacks(&waits, 3, 9, 225 * MS); /* while more is lacking: it has begun */
    waits_node_heard(&waits, 3, 230 * MS);
    waits_node_done(&waits, 3, 230 * MS);
    waits_node_done(&waits, 3, 235 * MS);
    struct waits_figures told = told_at(300 * MS);
    ck_assert_uint_eq(told.node[0].node, 3);
    ck_assert_uint_eq(told.node[0].start_us, 20000);
    ck_assert_uint_eq(told.node[0].flow_us, 15000);
    ck_assert_uint_eq(told.node[0].times, 2); /* collectives, not chunks */
    ck_assert_uint_eq(told.node[1].node, WAITS_NOBODY);
    /* The next time begins anew. */
    waits_node_lacks(&waits, 3, 10, 400 * MS);
    told = told_at(404 * MS);
    ck_assert_uint_eq(told.node[0].start_us, 24000);
    waits_node_done(&waits, 3, 410 * MS); /* its job has failed, nothing came */
    ck_assert_uint_eq(told_at(500 * MS).node[0].start_us, 30000);
}
END_TEST

START_TEST(a_word_of_a_node_that_nobody_waits_for_is_nothing)
{
    waits_node_heard(&waits, 2, 200 * MS);
    ck_assert_uint_eq(told_at(300 * MS).node[0].node, WAITS_NOBODY);
}
END_TEST

START_TEST(this_node_is_told_apart)
{
    waits_node_lacks(&waits, 0, 1, 200 * MS);
    ck_assert_uint_eq(told_at(205 * MS).self_us, 5000); /* it has not ended */
    waits_node_heard(&waits, 0, 210 * MS);
    waits_node_done(&waits, 0, 211 * MS);
    struct waits_figures told = told_at(300 * MS);
    ck_assert_uint_eq(told.self_us, 11000);
    ck_assert_uint_eq(told.self_times, 1);
    ck_assert_uint_eq(told.node[0].node, WAITS_NOBODY);
}
END_TEST

START_TEST(those_who_are_waited_for_longest_are_told)
{
    static const uint32_t ms[NODES] = {9, 3, 50, 0, 20, 30};
    for (uint32_t node = 1; node < NODES; node++) {
        if (ms[node] == 0)
            continue;
        waits_node_lacks(&waits, node, 1, 200 * MS);
        waits_node_done(&waits, node, 200 * MS + ms[node] * MS);
    }
    struct waits_figures told = told_at(300 * MS);
    ck_assert_uint_eq(told.node[0].node, 2);
    ck_assert_uint_eq(told.node[1].node, 5);
    ck_assert_uint_eq(told.node[2].node, 4);
    ck_assert_uint_eq(told.node[3].node, 1);
    struct waits_rank ranks[4] = {0};
    for (uint32_t i = 0; i < 4; i++) {
        wait_begin(&ranks[i].start, 200 * MS);
        wait_end(&ranks[i].start, (201 + (i * 3) % 4) * MS);
        wait_begin(&ranks[i].give, 300 * MS);
        wait_end(&ranks[i].give, 302 * MS);
        waits_tell_rank(&ranks[i], 10 + i, 300 * MS, &told);
    }
    ck_assert_uint_eq(told.ranks, 4);
    ck_assert_uint_eq(told.rank[0].rank, 11);
    ck_assert_uint_eq(told.rank[0].start_us, 4000);
    ck_assert_uint_eq(told.rank[0].give_us, 2000);
    ck_assert_uint_eq(told.rank[0].times, 1);
    ck_assert_uint_eq(told.rank[0].gives, 1);
    ck_assert_uint_eq(told.rank[1].rank, 12);
}
END_TEST

START_TEST(the_window_is_the_last_two_halves)
{
    struct waits_rank rank = {0};
    uint64_t now_ns = 100 * MS;
    for (int half = 0; half < 5; half++) {
        wait_begin(&rank.start, now_ns);
        waits_node_lacks(&waits, 1, (uint64_t)half, now_ns);
        wait_begin(&waits.tasks, now_ns);
        for (int i = 0; i < 4; i++)
            waits_collective(&waits, 1);
        ck_assert(!waits_half_over(&waits, now_ns + 1899 * MS));
        wait_end(&waits.tasks, now_ns + 500 * MS);
        now_ns += 2000 * MS;
        ck_assert(waits_half_over(&waits, now_ns));
        waits_turn(&waits, now_ns, (7 + (uint64_t)half) * MS); /* what waits goes on */
        waits_rank_turn(&rank, now_ns);
        wait_end(&rank.start, now_ns + 100 * MS);
        waits_node_done(&waits, 1, now_ns + 100 * MS);
        now_ns += 100 * MS;
    }
    struct waits_figures told;
    waits_tell(&waits, 0, now_ns, 13 * MS, &told);
    waits_tell_rank(&rank, 4, now_ns, &told);
    ck_assert_uint_eq(told.window_us, 2200000);
    ck_assert_uint_eq(told.collectives, 4);
    ck_assert_uint_eq(told.rank[0].start_us, 2200000);
    ck_assert_uint_eq(told.rank[0].times, 1);
    ck_assert_uint_eq(told.node[0].start_us, 2200000);
    ck_assert_uint_eq(told.tasks_us, 500000);
    ck_assert_uint_eq(told.still_us, 3000);
}
END_TEST

/* Where steps are long, figures of seconds say nothing. */
START_TEST(a_half_with_few_collectives_goes_on)
{
    waits_collective(&waits, 1);
    ck_assert(!waits_half_over(&waits, 100 * MS + 59999 * MS));
    ck_assert(waits_half_over(&waits, 100 * MS + 60000 * MS));
    for (int i = 0; i < 3; i++)
        waits_collective(&waits, 1);
    ck_assert(waits_half_over(&waits, 100 * MS + 2000 * MS));
    ck_assert(!waits_half_over(&waits, 0)); /* before it began */
}
END_TEST

START_TEST(a_step_is_what_repeats)
{
    for (uint32_t i = 0; i < 40; i++)
        waits_collective(&waits, i % 5 == 0 ? 77 : i % 5 == 3 ? 12 : 9);
    ck_assert_uint_eq(told_at(200 * MS).step, 5);
    waits_collective(&waits, 4711); /* once */
    ck_assert_uint_eq(told_at(200 * MS).step, 0);
    for (uint32_t i = 0; i < WAITS_ASKS; i++)
        waits_collective(&waits, 5);
    ck_assert_uint_eq(told_at(200 * MS).step, 1);
    for (uint32_t i = 0; i < 2 * WAITS_ASKS; i++)
        waits_collective(&waits, i);
    ck_assert_uint_eq(told_at(200 * MS).step, 0);
}
END_TEST

/* Chunks of several at once; each counts once. */
START_TEST(collectives_are_counted_at_their_owner)
{
    for (uint64_t first = 0; first < 40; first += 8) {
        for (uint64_t chunk = 0; chunk < 5; chunk++) {
            for (uint64_t sequence = first; sequence < first + 8; sequence++)
                waits_gathered(&waits, sequence);
        }
    }
    ck_assert_uint_eq(told_at(200 * MS).gathered, 40);
}
END_TEST

START_TEST(figures_travel_as_numbers)
{
    uint32_t words[WAITS_WORDS];
    waits_node_lacks(&waits, 3, 8, 200 * MS);
    struct waits_figures told = told_at(300 * MS), read;
    waits_pack(&told, words);
    ck_assert(waits_unpack(&read, words, WAITS_WORDS));
    ck_assert_mem_eq(&told, &read, sizeof(told));
    ck_assert(!waits_unpack(&read, words, WAITS_WORDS - 1));
    ck_assert(!waits_unpack(&read, words, 0));
}
END_TEST

/* Whatever happens, nothing is counted twice or lost: for each node the time is that in which a
 * plain list of what waits is not empty. */
START_TEST(random_waits_are_the_union_of_all)
{
    srand(4711);
    for (int run = 0; run < 50; run++) {
        setup();
        uint32_t open[NODES] = {0};
        uint64_t union_ns[NODES] = {0};
        uint64_t now_ns = 100 * MS;
        for (int step = 0; step < 400; step++) {
            uint64_t passed_ns = (uint64_t)(rand() % 3000) * 1000;
            for (uint32_t i = 0; i < NODES; i++)
                union_ns[i] += open[i] > 0 ? passed_ns : 0;
            now_ns += passed_ns;
            uint32_t node = (uint32_t)rand() % NODES;
            int what = rand() % 3;
            if (what == 0)
                waits_node_lacks(&waits, node, (uint64_t)step, now_ns);
            else if (what == 1)
                waits_node_heard(&waits, node, now_ns);
            else if (open[node] > 0)
                waits_node_done(&waits, node, now_ns);
            open[node] += what == 0 ? 1 : what == 2 && open[node] > 0 ? UINT32_MAX : 0;
        }
        for (uint32_t i = 0; i < NODES; i++) {
            uint64_t ns = nodes[i].start.ns[0] + nodes[i].flow.ns[0];
            const struct wait *it = nodes[i].start.open > 0 ? &nodes[i].start : &nodes[i].flow;
            ns += it->open > 0 ? now_ns - it->since_ns : 0;
            ck_assert_uint_eq(ns, union_ns[i]);
            ck_assert_uint_eq(nodes[i].start.open + nodes[i].flow.open, open[i]);
        }
    }
}
END_TEST

/* A result is waited for when one node alone owes any, be it one or several. */
START_TEST(a_node_that_alone_owes_results_is_waited_for)
{
    waits_result_lacks(&waits, 2, 200 * MS); /* alone */
    waits_result_lacks(&waits, 2, 201 * MS);
    waits_result_lacks(&waits, 4, 210 * MS); /* two do */
    waits_result_done(&waits, 2, 215 * MS);
    waits_result_done(&waits, 2, 220 * MS); /* node 4 is alone */
    waits_result_done(&waits, 4, 223 * MS);
    struct waits_figures told = told_at(300 * MS);
    ck_assert_uint_eq(told.node[0].node, 2);
    ck_assert_uint_eq(told.node[0].all_us, 10000);
    ck_assert_uint_eq(told.node[0].start_us + told.node[0].flow_us, 0);
    ck_assert_uint_eq(told.node[1].node, 4);
    ck_assert_uint_eq(told.node[1].all_us, 3000);
    ck_assert_uint_eq(told.node[2].node, WAITS_NOBODY);
    /* Its data is waited for at the same time: that is once. */
    waits_node_lacks(&waits, 4, 9, 400 * MS);
    waits_result_lacks(&waits, 4, 405 * MS);
    waits_node_heard(&waits, 4, 410 * MS);
    waits_node_done(&waits, 4, 410 * MS);
    told = told_at(420 * MS);
    ck_assert_uint_eq(told.node[0].node, 4);
    ck_assert_uint_eq(told.node[0].all_us, 23000); /* and it is not over */
    ck_assert_uint_eq(told.node[0].start_us, 10000);
    waits_result_done(&waits, 4, 420 * MS);
    ck_assert_uint_eq(told_at(500 * MS).node[0].all_us, 23000);
}
END_TEST

/* A collective is under way for 10 ms in good halves, and for 30 ms in bad ones. */
START_TEST(good_times_are_remembered)
{
    uint64_t now_ns = 100 * MS;
    for (uint32_t half = 0; half < 40; half++) {
        for (uint32_t i = 0; i < 20; i++)
            waits_collective(&waits, half < 39 ? 5 + i % 2 : 7);
        now_ns += 2000 * MS;
        waits_turn(&waits, now_ns, 7 * MS);
        waits_remember(&waits, 20 * (half % 3 == 0 ? 10 : 30) * MS);
        uint32_t sound_us = told_at(now_ns).sound_us;
        ck_assert_uint_eq(sound_us, half < 2 || half == 39 ? 0 : 10000);
    }
    /* Another pattern has no past, and little work is none. */
    for (uint32_t half = 0; half < 8; half++) {
        for (uint32_t i = 0; i < 128; i++)
            waits_collective(&waits, 9);
        if (half >= 4)
            waits.collectives[0] = 3;
        now_ns += 2000 * MS;
        waits_turn(&waits, now_ns, 7 * MS);
        waits_remember(&waits, half < 4 ? 128 * 4 * MS : 0);
    }
    ck_assert_uint_eq(told_at(now_ns).sound_us, 4000);
}
END_TEST

START_TEST(what_gathers_is_told)
{
    wait_begin(&waits.gather, 203 * MS);
    wait_end(&waits.gather, 210 * MS);
    struct waits_figures told = told_at(300 * MS);
    ck_assert_uint_eq(told.gather_us, 7000);
    for (uint64_t i = 1; i <= 2; i++)
        waits_turn(&waits, 10000 * i * MS, 7 * MS);
    ck_assert_uint_eq(told_at(30000 * MS).gather_us, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("waits");
    TCase *cases = tcase_create("waits");
    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_test(cases, nothing_is_told_of_nothing);
    tcase_add_test(cases, waits_that_overlap_count_once);
    tcase_add_test(cases, a_node_is_waited_for_before_and_behind_its_first_byte);
    tcase_add_test(cases, a_node_that_alone_owes_results_is_waited_for);
    tcase_add_test(cases, what_gathers_is_told);
    tcase_add_test(cases, good_times_are_remembered);
    tcase_add_test(cases, a_word_of_a_node_that_nobody_waits_for_is_nothing);
    tcase_add_test(cases, this_node_is_told_apart);
    tcase_add_test(cases, those_who_are_waited_for_longest_are_told);
    tcase_add_test(cases, the_window_is_the_last_two_halves);
    tcase_add_test(cases, a_half_with_few_collectives_goes_on);
    tcase_add_test(cases, a_step_is_what_repeats);
    tcase_add_test(cases, collectives_are_counted_at_their_owner);
    tcase_add_test(cases, figures_travel_as_numbers);
    tcase_add_test(cases, random_waits_are_the_union_of_all);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
