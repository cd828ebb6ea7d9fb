/* A job made from job_open: what is refused, and what each daemon makes of the rest. */
#include "server/jobs/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/format/layout.h"
#include "tests/lib/suite.h"

/* Four ranks on nodes 2, 0, 2, 3 of a roster of five; nodes 0 and 1 hold shards. */
#define ROSTER 5u

static struct message message;
static struct job *job;
static struct error error;

static void list(struct message_list *to, const uint32_t *values, uint32_t count)
{
    free(to->values);
    *to = (struct message_list){0};
    ck_assert_int_eq(message_list_set(to, values, count), 0);
}

#define LIST(to, ...)                                                                              \
    list(to, (const uint32_t[]){__VA_ARGS__},                                                      \
         (uint32_t)(sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)))

static void setup(void)
{
    message = (struct message){.type = MESSAGE_JOB_OPEN,
                               .job = "train",
                               .job_id = 77,
                               .generation = 3,
                               .lineage = 55,
                               .uid = 1000};
    LIST(&message.ranks, 2, 0, 2, 3);
    LIST(&message.members, 11, 12, 13, 14);
    LIST(&message.servers, 0, 1);
    LIST(&message.weights, 1, 3);
    LIST(&message.elders, 0, 1, 2, 4);
    job = NULL;
    error = (struct error){0};
}

static void teardown(void)
{
    if (job)
        job_free(job);
    message_clear(&message);
}

static void create(uint32_t home, uint32_t self)
{
    if (job)
        job_free(job);
    ck_assert_msg(job_create(&job, &message, home, self, ROSTER, &error) == 0, "%s", error.text);
}

static void refused(const char *text)
{
    struct job *untouched = job;
    ck_assert_int_eq(job_create(&job, &message, 0, 0, ROSTER, &error), ERR_PROTOCOL);
    ck_assert_ptr_eq(job, untouched);
    ck_assert_str_eq(error.text, text);
}

/* --- what is made */

START_TEST(test_created)
{
    create(4, 2);
    ck_assert_uint_eq(job->id, 77);
    ck_assert_str_eq(job->name, "train");
    ck_assert_uint_eq(job->generation, 3);
    ck_assert_uint_eq(job->lineage, 55);
    ck_assert_uint_eq(job->uid, 1000);
    ck_assert_uint_eq(job->world_size, 4);
    ck_assert_mem_eq(job->rank_nodes, message.ranks.values, 16);
    ck_assert_mem_eq(job->members, message.members.values, 16);
    ck_assert_uint_eq(job->server_count, 2);
    ck_assert_mem_eq(job->weights, message.weights.values, 8);
    ck_assert_int_eq(job->state, JOB_OPENING);
    ck_assert_uint_eq(job->local_count, 0);
    ck_assert_uint_eq(job->departed_count, 0);
    message_clear(&message); /* the lists are copies */
    ck_assert_uint_eq(job->members[3], 14);
}
END_TEST

START_TEST(test_roles)
{
    static const uint8_t roles[ROSTER] = {JOB_NODE_RANKS | JOB_NODE_SERVER, JOB_NODE_SERVER,
                                          JOB_NODE_RANKS, JOB_NODE_RANKS, JOB_NODE_HOME};
    create(4, 0);
    ck_assert_mem_eq(job->roles, roles, ROSTER);
    create(0, 0);
    ck_assert_uint_eq(job->roles[0], JOB_NODE_RANKS | JOB_NODE_SERVER | JOB_NODE_HOME);
    ck_assert_uint_eq(job->roles[4], 0);
}
END_TEST

START_TEST(test_nodes)
{
    static const struct {
        uint32_t self, local_size, node_index;
        bool engine;
    } nodes[ROSTER] = {
        {0, 1, 0, true},                   /* a rank and shards */
        {1, 0, 1, true},                   /* shards alone */
        {2, 2, 1, true},                   /* ranks alone */
        {3, 1, 2, true}, {4, 0, 3, false}, /* home alone: nothing of the data passes here */
    };
    for (uint32_t node = 0; node < ROSTER; node++) {
        create(4, node);
        ck_assert_uint_eq(job_local_size(job), nodes[node].local_size);
        ck_assert_uint_eq(job_node_count(job), 3);
        ck_assert_uint_eq(job_node_index(job), nodes[node].node_index);
        ck_assert(job_needs_engine(job) == nodes[node].engine);
    }
}
END_TEST

START_TEST(test_world_group)
{
    create(0, 0);
    struct group *world = job_group(job, 0);
    ck_assert_ptr_nonnull(world);
    ck_assert_uint_eq(world->count, 4);
    for (uint32_t rank = 0; rank < 4; rank++)
        ck_assert_int_eq(group_position(world, rank), rank);
    ck_assert_ptr_null(job_group(job, 1));
    ck_assert_uint_eq(job->next_group, 1);
    ck_assert(!job_group_is_local(job, world));
}
END_TEST

START_TEST(test_groups_are_found)
{
    static const uint32_t ranks[] = {2, 0}, apart[] = {0, 3};
    create(0, 0);
    struct group *one = group_create(9, 0, ranks, 2, ROSTER);
    struct group *two = group_create(70000, 0, apart, 2, ROSTER);
    HASH_ADD(hh, job->groups, id, sizeof(one->id), one);
    HASH_ADD(hh, job->groups, id, sizeof(two->id), two);
    ck_assert_ptr_eq(job_group(job, 9), one);
    ck_assert_ptr_eq(job_group(job, 70000), two);
    ck_assert_ptr_null(job_group(job, 10));
    ck_assert(job_group_is_local(job, one)); /* ranks 0 and 2 are both on node 2 */
    ck_assert(!job_group_is_local(job, two));
}
END_TEST

START_TEST(test_one_rank_is_local)
{
    LIST(&message.ranks, 3);
    LIST(&message.members, 1);
    create(3, 3);
    ck_assert(job_group_is_local(job, job_group(job, 0)));
    ck_assert_uint_eq(job_local_size(job), 1);
    ck_assert_uint_eq(job_node_count(job), 1);
}
END_TEST

START_TEST(test_a_node_has_ranks_until_all_left)
{
    create(0, 0);
    ck_assert(job_node_has_ranks(job, 2));
    ck_assert(!job_node_has_ranks(job, 1));
    job->departed[0] = true;
    ck_assert(job_node_has_ranks(job, 2));
    job->departed[2] = true;
    ck_assert(!job_node_has_ranks(job, 2));
    ck_assert(job_node_has_ranks(job, 3));
}
END_TEST

START_TEST(test_free_takes_everything)
{
    /* For the leak checker: what gathers and what is late goes with the job. */
    static const uint32_t ranks[] = {0, 1};
    create(0, 0);
    struct group_gathering *gathering = group_gathering_create(0, ranks, 2);
    DL_APPEND(job->gatherings, gathering);
    for (int i = 0; i < 2; i++) {
        struct job_late *late = calloc(1, sizeof(*late));
        late->ranks = calloc(2, sizeof(*late->ranks));
        DL_APPEND(job->lates, late);
    }
    job_free(job);
    job = NULL;
}
END_TEST

/* --- what is refused: another daemon may send anything */

START_TEST(test_refused_ranks)
{
    LIST(&message.members, 11, 12, 13);
    refused("job_open: 4 ranks, 3 members of job 'train'");
    list(&message.ranks, NULL, 0);
    list(&message.members, NULL, 0);
    refused("job_open: 0 ranks, 0 members of job 'train'");
    LIST(&message.ranks, 2, 0, 5, 3);
    LIST(&message.members, 11, 12, 13, 14);
    refused("job_open: rank 2 on node number 5 of 5");
    LIST(&message.ranks, 2, 0, 1, UINT32_MAX);
    refused("job_open: rank 3 on node number 4294967295 of 5");
}
END_TEST

START_TEST(test_refused_elders)
{
    create(4, 2);
    ck_assert(job->elders[0] && job->elders[2] && job->elders[4]);
    ck_assert(!job->elders[3]); /* it has ranks, but is new */
    message.elders.count = 0;
    refused("job_open: generation 3, 0 elders");
    LIST(&message.elders, 2, 9);
    refused("job_open: elder 1 is node number 9 of 5");
    message.generation = 1;
    message.lineage = 0;
    refused("job_open: generation 1, 2 elders");
}
END_TEST

START_TEST(test_refused_lineage)
{
    message.lineage = 0;
    refused("job_open: generation 3 without lineage");
    message.generation = 1;
    message.lineage = 55;
    refused("job_open: generation 1 with a lineage");
    message.lineage = 0;
    message.generation = 0;
    refused("job_open: generation 0 without lineage");
    message.generation = 1;
    message.elders.count = 0;
    create(4, 2);
    ck_assert_uint_eq(job->lineage, 77); /* the first one is its own */
}
END_TEST

START_TEST(test_refused_name)
{
    message.job[0] = '\0';
    refused("job_open: 4 ranks, 4 members of job ''");
}
END_TEST

START_TEST(test_refused_servers)
{
    LIST(&message.weights, 1);
    refused("job_open: 2 servers, 1 weights");
    list(&message.servers, NULL, 0);
    list(&message.weights, NULL, 0);
    refused("job_open: 0 servers, 0 weights");
    LIST(&message.weights, 1, 1);
    LIST(&message.servers, 0, 5);
    refused("job_open: server 1 is node number 5 of 5");
    LIST(&message.servers, 1, 1); /* the same one twice */
    refused("job_open: server 1 is node number 1 of 5");
    LIST(&message.servers, 1, 0); /* not ascending */
    refused("job_open: server 1 is node number 0 of 5");
}
END_TEST

START_TEST(test_refused_weights)
{
    char text[80];
    LIST(&message.weights, 1, 0);
    refused("job_open: server 1 has weight 0");
    LIST(&message.weights, LAYOUT_MAX_WEIGHT + 1, 1);
    snprintf(text, sizeof(text), "job_open: server 0 has weight %u", LAYOUT_MAX_WEIGHT + 1);
    refused(text);
    LIST(&message.weights, LAYOUT_MAX_WEIGHT, LAYOUT_MAX_WEIGHT);
    create(0, 0); /* the largest is allowed */
}
END_TEST

START_TEST(test_largest_and_one_too_large)
{
    uint32_t *zeros = calloc(MESSAGE_RANKS_MAX + 1, sizeof(*zeros));
    list(&message.ranks, zeros, MESSAGE_RANKS_MAX);
    list(&message.members, zeros, MESSAGE_RANKS_MAX);
    create(0, 0);
    ck_assert_uint_eq(job_local_size(job), MESSAGE_RANKS_MAX);
    list(&message.ranks, zeros, MESSAGE_RANKS_MAX + 1);
    list(&message.members, zeros, MESSAGE_RANKS_MAX + 1);
    refused("job_open: 32769 ranks, 32769 members of job 'train'");
    free(zeros);
}
END_TEST

/* --- texts */

START_TEST(test_ranks_text)
{
    uint32_t ranks[40];
    char text[JOB_RANKS_TEXT_BYTES];
    for (uint32_t i = 0; i < 40; i++)
        ranks[i] = i;
    job_ranks_text(ranks + 3, 1, text);
    ck_assert_str_eq(text, "rank 3");
    job_ranks_text(ranks + 2, 2, text);
    ck_assert_str_eq(text, "ranks 2, 3");
    job_ranks_text(ranks, 12, text);
    ck_assert_str_eq(text, "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11");
    job_ranks_text(ranks, 13, text);
    ck_assert_str_eq(text, "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 1 more");
    job_ranks_text(ranks, 40, text);
    ck_assert_str_eq(text, "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 28 more");
}
END_TEST

START_TEST(test_ranks_text_never_runs_over)
{
    /* The longest numbers there can be. */
    uint32_t ranks[20];
    struct {
        char text[JOB_RANKS_TEXT_BYTES];
        char guard[8];
    } place;
    memset(&place, 'x', sizeof(place));
    for (uint32_t i = 0; i < 20; i++)
        ranks[i] = UINT32_MAX;
    job_ranks_text(ranks, 20, place.text);
    ck_assert_mem_eq(place.guard, "xxxxxxxx", 8);
    ck_assert_ptr_nonnull(strstr(place.text, "and 8 more"));
}
END_TEST

START_TEST(test_node_ranks_text)
{
    char text[JOB_RANKS_TEXT_BYTES];
    create(0, 0);
    job_node_ranks_text(job, 2, text);
    ck_assert_str_eq(text, "ranks 0, 2");
    job_node_ranks_text(job, 3, text);
    ck_assert_str_eq(text, "rank 3");
    job_node_ranks_text(job, 1, text);
    ck_assert_str_eq(text, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job");
    TCase *cases = tcase_create("job");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_created);
    tcase_add_test(cases, test_roles);
    tcase_add_test(cases, test_nodes);
    tcase_add_test(cases, test_world_group);
    tcase_add_test(cases, test_groups_are_found);
    tcase_add_test(cases, test_one_rank_is_local);
    tcase_add_test(cases, test_a_node_has_ranks_until_all_left);
    tcase_add_test(cases, test_free_takes_everything);
    tcase_add_test(cases, test_refused_ranks);
    tcase_add_test(cases, test_refused_lineage);
    tcase_add_test(cases, test_refused_elders);
    tcase_add_test(cases, test_refused_name);
    tcase_add_test(cases, test_refused_servers);
    tcase_add_test(cases, test_refused_weights);
    tcase_add_test(cases, test_largest_and_one_too_large);
    tcase_add_test(cases, test_ranks_text);
    tcase_add_test(cases, test_ranks_text_never_runs_over);
    tcase_add_test(cases, test_node_ranks_text);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
