/* Verdicts over reports of daemons, made up one by one. */
#include "server/waits/verdict.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

static struct waits_figures report_of(uint32_t node)
{
    struct waits_figures report = {.window_us = 1000000,
                                   .collectives = 100,
                                   .step = 10,
                                   .gathered = 100,
                                   .ranks = 1,
                                   .own = node,
                                   .rank = {{.rank = node}, {.rank = WAITS_NOBODY}}};
    for (uint32_t i = 0; i < WAITS_NODES; i++)
        report.node[i].node = WAITS_NOBODY;
    return report;
}

static void report_wait(struct waits_figures *report, uint32_t node, uint32_t start_us,
                        uint32_t flow_us)
{
    uint32_t i = 0;
    while (report->node[i].node != WAITS_NOBODY)
        i++;
    report->node[i].node = node;
    report->node[i].start_us = start_us;
    report->node[i].flow_us = flow_us;
    report->node[i].all_us = start_us + flow_us;
    report->node[i].times = 60;
}

START_TEST(a_node_that_takes_slowly_from_all_is_the_receiver)
{
    struct waits_figures reports[4];
    struct verdict verdict;
    for (uint32_t i = 0; i < 4; i++)
        reports[i] = report_of(i);
    for (uint32_t i = 0; i < 4; i++) {
        if (i != 2)
            report_wait(&reports[2], i, 1000, 100000 + i * 1000);
    }
    verdict_find(&verdict, reports, 4);
    ck_assert_int_eq(verdict.kind, VERDICT_RECEIVER_SLOW);
    ck_assert_uint_eq(verdict.node, 2);
    ck_assert_uint_eq(verdict.to, WAITS_NOBODY);
    ck_assert_double_eq_tol(verdict.step_ms, 100, 1e-6);
    ck_assert_double_eq_tol(verdict.lost_ms, 10.4, 1e-6);
    ck_assert_uint_eq(verdict.times, 60);
    /* Its daemon does not get to run: that is why. */
    reports[2].still_us = 120000;
    verdict_find(&verdict, reports, 4);
    ck_assert_int_eq(verdict.kind, VERDICT_SERVER_SLOW);
    ck_assert_uint_eq(verdict.node, 2);
}
END_TEST

/* The reports are from a sound job of three nodes on two cores: one link was a little behind the
 * others. */
START_TEST(a_link_among_others_that_differ_is_nobodys)
{
    struct waits_figures reports[3] = {report_of(0), report_of(1), report_of(2)};
    struct verdict verdict;
    report_wait(&reports[0], 1, 10000, 170000);
    report_wait(&reports[2], 0, 5000, 90000);
    report_wait(&reports[1], 2, 5000, 80000);
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_NOBODY);
    /* The link is nobody's either where the others are alike, and between daemons that did not get
     * to run. */
    reports[1].node[0].flow_us = reports[2].node[0].flow_us = 0;
    reports[0].still_us = reports[1].still_us = reports[2].still_us = 100000;
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_NOBODY);
    for (uint32_t i = 0; i < 3; i++)
        reports[i].still_us = 10000;
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_LINK_SLOW);
    ck_assert_uint_eq(verdict.node, 1);
    ck_assert(!verdict.sure);
    /* A few collectives are not enough to name the link. A node without ranks gets no results, so
     * that its figure is sure. */
    for (uint32_t i = 0; i < 3; i++)
        reports[i].collectives = 7;
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_NOBODY);
    reports[0].collectives = 8;
    reports[0].ranks = 0;
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_LINK_SLOW);
    ck_assert(verdict.sure);
}
END_TEST

/* A daemon that stands still sees late what its ranks have begun, and all that the others send.
 * Both come together, so that its ranks are not what lacked. The others wait for what it owes
 * meanwhile. */
START_TEST(a_daemon_that_stands_still_sees_its_ranks_late)
{
    struct waits_figures reports[3] = {report_of(0), report_of(1), report_of(2)};
    struct verdict verdict;
    for (uint32_t i = 0; i < 3; i++) {
        reports[i].opened_us = i == 2 ? 300000 : 600000;
        if (i != 2)
            report_wait(&reports[i], 2, 380000, 5000);
    }
    reports[2].self_us = 20000;
    reports[2].still_us = 90000;
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_SERVER_SLOW);
    ck_assert_uint_eq(verdict.node, 2);
    ck_assert_double_eq_tol(verdict.lost_ms, 38.5, 1e-6);
    /* The daemon's ranks were what lacked. */
    reports[2].self_us = 350000;
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_RANK_LATE);
    ck_assert_uint_eq(verdict.rank, 2);
    /* Others stand out as much: it is nobody's. */
    report_wait(&reports[0], 1, 320000, 5000);
    report_wait(&reports[2], 1, 320000, 5000);
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_NOBODY);
}
END_TEST

/* Three daemons of one host, of which one has a loop beside it: the others stand still, too. */
START_TEST(of_daemons_that_share_processors_the_stillest_is_slow)
{
    struct waits_figures reports[3] = {report_of(0), report_of(1), report_of(2)};
    struct verdict verdict;
    for (uint32_t i = 0; i < 3; i++) {
        reports[i].still_us = i == 2 ? 320000 : 180000;
        if (i != 2)
            report_wait(&reports[i], 2, 150000, 20000);
    }
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_SERVER_SLOW);
    ck_assert_uint_eq(verdict.node, 2);
    /* The standstill does not explain the waits. */
    reports[2].still_us = 270000;
    verdict_find(&verdict, reports, 3);
    ck_assert_int_ne(verdict.kind, VERDICT_SERVER_SLOW);
    ck_assert_uint_eq(verdict.node, 2);
}
END_TEST

/* The way of the slow link's data hides what others send meanwhile: the past has that. It is not
 * believed where it has the fault too, or is of another kind. */
START_TEST(the_past_knows_what_a_step_takes)
{
    static const uint32_t sound_us[] = {15000, 0, 85000};
    static const double without_ms[] = {25 + 15, 25 + 5, 25 + 5};
    for (uint32_t k = 0; k < 3; k++) {
        struct waits_figures reports[3] = {report_of(0), report_of(1), report_of(2)};
        struct verdict verdict;
        for (uint32_t i = 0; i < 3; i++) {
            reports[i].collectives = reports[i].gathered = 10;
            reports[i].opened_us = 750000;
            reports[i].gather_us = i == 1 ? 500000 : 0;
            reports[i].sound_us = sound_us[k];
            if (i != 1)
                report_wait(&reports[i], 1, 0, 700000);
            reports[i].step = 1;
        }
        verdict_find(&verdict, reports, 3);
        ck_assert_int_eq(verdict.kind, VERDICT_LINK_SLOW);
        ck_assert_uint_eq(verdict.node, 1);
        ck_assert(verdict.sure);
        ck_assert_double_eq_tol(verdict.step_ms, 100, 1e-6);
        ck_assert_double_eq_tol(verdict.without_ms, without_ms[k], 1e-6);
    }
}
END_TEST

/* A thousand daemons' reports take no time that others of the control thread would miss. */
START_TEST(a_thousand_nodes_are_heard)
{
    enum { NODES = 1000 };
    struct waits_figures *reports = calloc(NODES, sizeof(*reports));
    struct verdict verdict;
    ck_assert_ptr_nonnull(reports);
    for (uint32_t i = 0; i < NODES; i++) {
        reports[i] = report_of(i);
        for (uint32_t k = 1; k <= WAITS_NODES; k++)
            report_wait(&reports[i], (i + k) % NODES, 0, 1000 + i % 7);
        if (i != 500) {
            reports[i].node[0].node = 500;
            reports[i].node[0].flow_us = reports[i].node[0].all_us = 400000;
        }
    }
    verdict_find(&verdict, reports, NODES);
    ck_assert_int_eq(verdict.kind, VERDICT_LINK_SLOW);
    ck_assert_uint_eq(verdict.node, 500);
    ck_assert_uint_eq(verdict.to, WAITS_NOBODY);
    free(reports);
}
END_TEST

/* A node that owns nothing cannot know that its own part is what lacks. */
START_TEST(a_late_node_without_a_part_is_known_by_the_others)
{
    struct waits_figures reports[3] = {report_of(0), report_of(1), report_of(2)};
    struct verdict verdict;
    reports[2].gathered = 0;
    report_wait(&reports[0], 2, 80000, 500);
    report_wait(&reports[1], 2, 81000, 500);
    reports[0].opened_us = reports[1].opened_us = 200000;
    reports[2].opened_us = 110000;
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_RANK_LATE);
    ck_assert_uint_eq(verdict.rank, 2);
    ck_assert_uint_eq(verdict.node, 2);
}
END_TEST

/* With small buffers each node owns one now and then, and sees the waits of these alone. */
START_TEST(owners_of_a_few_count_for_all)
{
    struct waits_figures reports[2] = {report_of(0), report_of(1)};
    struct verdict verdict;
    for (uint32_t i = 0; i < 2; i++)
        reports[i].gathered = 50;
    reports[1].self_us = 150000;
    report_wait(&reports[0], 1, 152000, 0);
    verdict_find(&verdict, reports, 2);
    ck_assert_int_eq(verdict.kind, VERDICT_RANK_LATE);
    ck_assert_uint_eq(verdict.rank, 1);
    ck_assert_double_eq_tol(verdict.lost_ms, 30.2, 1e-6);
}
END_TEST

/* Waits that all nodes have alike are nobody's: the network is the limit. */
START_TEST(what_all_have_alike_is_nobodys)
{
    struct waits_figures reports[3] = {report_of(0), report_of(1), report_of(2)};
    struct verdict verdict;
    for (uint32_t i = 0; i < 3; i++) {
        report_wait(&reports[i], (i + 1) % 3, 0, 300000 + i * 2000);
        report_wait(&reports[i], (i + 2) % 3, 0, 300000);
        reports[i].tasks_us = 400000;
    }
    verdict_find(&verdict, reports, 3);
    ck_assert_int_eq(verdict.kind, VERDICT_NOBODY);
}
END_TEST

START_TEST(of_little_nothing_is_said)
{
    struct waits_figures report = report_of(0);
    struct verdict verdict;
    report.gathered = 0;
    report.ranks = 2;
    report.rank[0].start_us = 900000;
    report.collectives = 3;
    verdict_find(&verdict, &report, 1);
    ck_assert_int_eq(verdict.kind, VERDICT_UNKNOWN);
    report.collectives = 4;
    report.step = 0; /* no pattern: a collective is the step */
    verdict_find(&verdict, &report, 1);
    ck_assert_int_eq(verdict.kind, VERDICT_RANK_LATE);
    ck_assert_double_eq_tol(verdict.step_ms, 250, 1e-6);
    ck_assert_double_eq_tol(verdict.without_ms, 25, 1e-6);
    report.window_us = 0;
    verdict_find(&verdict, &report, 1);
    ck_assert_int_eq(verdict.kind, VERDICT_UNKNOWN);
}
END_TEST

/* Whatever another daemon tells, the answer is a number and names somebody who was told of. */
START_TEST(nonsense_leads_to_numbers)
{
    for (uint32_t seed = 0; seed < 500; seed++) {
        srand(seed);
        uint32_t words[WAITS_WORDS];
        struct waits_figures reports[3];
        struct verdict verdict;
        for (uint32_t i = 0; i < 3; i++) {
            for (uint32_t k = 0; k < WAITS_WORDS; k++)
                words[k] =
                    rand() % 3 == 0 ? (uint32_t)rand() % 4 : (uint32_t)rand() << (rand() % 3);
            ck_assert(waits_unpack(&reports[i], words, WAITS_WORDS));
        }
        verdict_find(&verdict, reports, 3);
        ck_assert(verdict.step_ms >= 0 && verdict.lost_ms >= 0 && verdict.without_ms >= 0);
        ck_assert(verdict.lost_ms <= verdict.step_ms);
        ck_assert_ptr_nonnull(verdict_kind_name(verdict.kind));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("verdict_reports");
    TCase *cases = tcase_create("verdict_reports");
    tcase_add_test(cases, a_node_that_takes_slowly_from_all_is_the_receiver);
    tcase_add_test(cases, a_link_among_others_that_differ_is_nobodys);
    tcase_add_test(cases, a_daemon_that_stands_still_sees_its_ranks_late);
    tcase_add_test(cases, of_daemons_that_share_processors_the_stillest_is_slow);
    tcase_add_test(cases, the_past_knows_what_a_step_takes);
    tcase_add_test(cases, a_thousand_nodes_are_heard);
    tcase_add_test(cases, a_late_node_without_a_part_is_known_by_the_others);
    tcase_add_test(cases, owners_of_a_few_count_for_all);
    tcase_add_test(cases, what_all_have_alike_is_nobodys);
    tcase_add_test(cases, of_little_nothing_is_said);
    tcase_add_test(cases, nonsense_leads_to_numbers);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
