/* The training of the digits example, without shoal: its ranks are threads here. */
#include "tests/lib/suite.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "worker/examples/digits/dataset.h"
#include "worker/examples/digits/network.h"
#include "worker/examples/digits/random.h"
#include "worker/examples/digits/training.h"
#include "worker/shoal.h"

#define DATA_PATH TEST_SOURCE_DIR "/worker/examples/digits/digits.csv"

/* The demo's network and plan; fewer epochs where every access is checked. */
static const struct network demo_network = {4, {DATASET_PIXELS, 256, 256, 128, DATASET_CLASSES}};
#ifdef SHOAL_SANITIZED
enum { DEMO_EPOCHS = 3 };
#define DEMO_ACCURACY 0.92
#else
enum { DEMO_EPOCHS = 20 };
#define DEMO_ACCURACY 0.95
#endif

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static float *random_floats(size_t count, uint64_t seed)
{
    float *values = allocate(count, sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = 2.0F * random_unit(&seed) - 1.0F;
    return values;
}

static const struct network small_network = {3, {6, 9, 5, 4}};
enum { SMALL_TENSORS = 6 };

/* --- orders, shares, differences ------------------------------------------------------------- */

START_TEST(order_is_a_permutation_of_its_own)
{
    enum { ROWS = 1438 };
    uint32_t a[ROWS], b[ROWS];
    unsigned char seen[ROWS] = {0};
    training_order(a, ROWS, 1, 1);
    for (size_t i = 0; i < ROWS; i++) {
        ck_assert_uint_lt(a[i], ROWS);
        ck_assert_uint_eq(seen[a[i]]++, 0);
    }
    training_order(b, ROWS, 1, 1);
    ck_assert_mem_eq(a, b, sizeof a);
    training_order(b, ROWS, 1, 2);
    ck_assert_mem_ne(a, b, sizeof a);
    training_order(b, ROWS, 2, 1);
    ck_assert_mem_ne(a, b, sizeof a);
    training_order(b, 1, 2, 1);
    ck_assert_uint_eq(b[0], 0);
}
END_TEST

START_TEST(shares_cover_every_row_once)
{
    for (size_t rows = 0; rows < 40; rows++)
        for (int world_size = 1; world_size < 10; world_size++) {
            size_t next = 0, least = rows / (size_t)world_size;
            for (int rank = 0; rank < world_size; rank++) {
                size_t first, count;
                training_share(rows, rank, world_size, &first, &count);
                ck_assert_uint_eq(first, next);
                ck_assert(count == least || count == least + 1);
                next += count;
            }
            ck_assert_uint_eq(next, rows);
        }
}
END_TEST

START_TEST(difference_is_of_the_worst_tensor)
{
    size_t count = network_parameter_count(&small_network), tensor = 99;
    float *a = random_floats(count, 21), *b = allocate(count, sizeof(float));
    memcpy(b, a, count * sizeof(float));
    ck_assert_double_eq(training_difference(&small_network, a, b, &tensor), 0.0);

    /* Tensor 3 has five elements; the greatest of the reference is 4, the difference 0.5. */
    size_t at = network_tensor_offset(&small_network, 3);
    for (size_t i = 0; i < 5; i++)
        a[at + i] = b[at + i] = (float)i;
    a[at] = 0.5F;
    ck_assert_double_eq(training_difference(&small_network, a, b, &tensor), 0.125);
    ck_assert_uint_eq(tensor, 3);
    a[at] = -0.5F;
    ck_assert_double_eq(training_difference(&small_network, a, b, &tensor), 0.125);

    a[at] = NAN;
    ck_assert(isinf(training_difference(&small_network, a, b, NULL)));
    a[at] = 0.0F;
    ck_assert_double_eq(training_difference(&small_network, a, b, NULL), 0.0);
    b[count - 1] = INFINITY;
    ck_assert(isinf(training_difference(&small_network, a, b, &tensor)));
    ck_assert_uint_eq(tensor, SMALL_TENSORS - 1);

    memset(a, 0, count * sizeof(float));
    memset(b, 0, count * sizeof(float));
    ck_assert_double_eq(training_difference(&small_network, a, b, NULL), 0.0);
    a[0] = FLT_MIN;
    ck_assert(isinf(training_difference(&small_network, a, b, NULL)));
    free(a);
    free(b);
}
END_TEST

/* The vectors of the algorithm's authors. */
START_TEST(hash_is_fnv_1a)
{
    ck_assert_uint_eq(training_hash("", 0), UINT64_C(0xcbf29ce484222325));
    ck_assert_uint_eq(training_hash("a", 1), UINT64_C(0xaf63dc4c8601ec8c));
    ck_assert_uint_eq(training_hash("foobar", 6), UINT64_C(0x85944171f73967e8));
}
END_TEST

/* --- training -------------------------------------------------------------------------------- */

enum { WORLD_MAX = 8 };

/* Ranks that are threads; their gradients are summed as two nodes would: the ranks of a node in
 * rank order, then the nodes. */
struct world {
    const struct training *training;
    int size, ranks_per_node;
    pthread_barrier_t barrier;
    float *gradients[WORLD_MAX]; /* of each rank */
    float *sum;
};

struct rank {
    struct world *world;
    int number;
    pthread_t thread;
    float *parameters;
    size_t told; /* tensors said ready in this step */
    int result;
};

static void set_tensors(const struct network *network, float *memory, float **gradients)
{
    for (size_t t = 0; t < network_tensor_count(network); t++)
        gradients[t] = memory + network_tensor_offset(network, t);
}

static int rank_begin(void *context, float **gradients)
{
    struct rank *rank = context;
    rank->told = 0;
    set_tensors(rank->world->training->network, rank->world->gradients[rank->number], gradients);
    return 0;
}

static int rank_ready(void *context, size_t tensor)
{
    struct rank *rank = context;
    (void)tensor;
    rank->told++;
    return 0;
}

static int rank_finish(void *context, float **gradients)
{
    struct rank *rank = context;
    struct world *world = rank->world;
    const struct network *network = world->training->network;
    size_t first, count;
    if (rank->told != network_tensor_count(network))
        return SHOAL_ESTATE;
    training_share(network_parameter_count(network), rank->number, world->size, &first, &count);
    pthread_barrier_wait(&world->barrier);
    for (size_t i = first; i < first + count; i++) {
        float sum = 0.0F;
        for (int node = 0; node * world->ranks_per_node < world->size; node++) {
            float of_node = 0.0F;
            for (int r = 0; r < world->ranks_per_node; r++)
                of_node += world->gradients[node * world->ranks_per_node + r][i];
            sum += of_node;
        }
        world->sum[i] = sum;
    }
    pthread_barrier_wait(&world->barrier);
    set_tensors(network, world->sum, gradients);
    return 0;
}

static void *rank_main(void *context)
{
    struct rank *rank = context;
    struct training_exchange exchange = {.rank = rank->number,
                                         .world_size = rank->world->size,
                                         .context = rank,
                                         .begin = rank_begin,
                                         .ready = rank_ready,
                                         .finish = rank_finish};
    rank->result = training_run(rank->world->training, &exchange, rank->parameters, NULL, NULL);
    return NULL;
}

/* Train with `size` ranks; all must end with the same bits, which `parameters` receives. */
static void train_together(const struct training *training, int size, int ranks_per_node,
                           float *parameters)
{
    struct world world = {.training = training, .size = size, .ranks_per_node = ranks_per_node};
    struct rank ranks[WORLD_MAX] = {{0}};
    size_t count = network_parameter_count(training->network);
    ck_assert_int_eq(pthread_barrier_init(&world.barrier, NULL, (unsigned)size), 0);
    world.sum = allocate(count, sizeof(float));
    for (int r = 0; r < size; r++) {
        world.gradients[r] = allocate(count, sizeof(float));
        ranks[r] = (struct rank){.world = &world, .number = r};
        ranks[r].parameters = allocate(count, sizeof(float));
        network_initialize(training->network, training->plan.seed, ranks[r].parameters);
    }
    for (int r = 0; r < size; r++)
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    for (int r = 0; r < size; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < size; r++) {
        ck_assert_int_eq(ranks[r].result, 0);
        ck_assert_mem_eq(ranks[r].parameters, ranks[0].parameters, count * sizeof(float));
    }
    memcpy(parameters, ranks[0].parameters, count * sizeof(float));
    for (int r = 0; r < size; r++) {
        free(ranks[r].parameters);
        free(world.gradients[r]);
    }
    free(world.sum);
    pthread_barrier_destroy(&world.barrier);
}

static struct dataset training_rows, test_rows;
static struct training training;
static float *alone, *together;

static void training_setup(void)
{
    struct dataset all;
    char error[DATASET_ERROR_BYTES] = "";
    ck_assert_msg(dataset_load(DATA_PATH, &all, error) == 0, "%s", error);
    ck_assert_int_eq(dataset_split(&all, &training_rows, &test_rows), 0);
    dataset_free(&all);
    training = (struct training){.network = &demo_network,
                                 .rows = &training_rows,
                                 .plan = {.epochs = DEMO_EPOCHS,
                                          .batch_rows = 128,
                                          .seed = 1,
                                          .learning_rate = 0.08F,
                                          .momentum = 0.9F}};
    alone = allocate(network_parameter_count(&demo_network), sizeof(float));
    together = allocate(network_parameter_count(&demo_network), sizeof(float));
    network_initialize(&demo_network, 1, alone);
}

static void training_teardown(void)
{
    dataset_free(&training_rows);
    dataset_free(&test_rows);
    free(alone);
    free(together);
}

static size_t alone_bytes(void)
{
    return network_parameter_count(training.network) * sizeof(float);
}

START_TEST(alone_reaches_the_accuracy)
{
    size_t correct;
    ck_assert_int_eq(
        training_evaluate(&demo_network, alone, &test_rows, 0, test_rows.row_count, &correct), 0);
    ck_assert_uint_lt(correct, test_rows.row_count / 2); /* nothing learnt yet */
    ck_assert_int_eq(training_run_alone(&training, alone, NULL, NULL), 0);
    ck_assert_int_eq(
        training_evaluate(&demo_network, alone, &test_rows, 0, test_rows.row_count, &correct), 0);
    ck_assert_msg((double)correct >= DEMO_ACCURACY * (double)test_rows.row_count, "%zu of %zu rows",
                  correct, test_rows.row_count);
}
END_TEST

START_TEST(four_ranks_agree_with_one_process)
{
    size_t tensor = 0;
    train_together(&training, 4, 2, together);
    ck_assert_int_eq(training_run_alone(&training, alone, NULL, NULL), 0);
    double difference = training_difference(&demo_network, together, alone, &tensor);
    ck_assert_msg(difference <= 1e-5, "%g in tensor %zu", difference, tensor);
    /* Rounded elsewhere: were it zero, both would have been the same run. */
    ck_assert(difference > 0.0);
}
END_TEST

START_TEST(again_gives_the_same_bits)
{
    float *again = allocate(network_parameter_count(&demo_network), sizeof(float));
    training.plan.epochs = 2;
    train_together(&training, 4, 2, together);
    train_together(&training, 4, 2, again);
    ck_assert_mem_eq(together, again, alone_bytes());
    training.plan.seed = 2; /* another order of the rows, other parameters to begin with */
    train_together(&training, 4, 2, again);
    ck_assert_mem_ne(together, again, alone_bytes());
    free(again);
}
END_TEST

START_TEST(one_rank_is_the_run_alone)
{
    training.plan.epochs = 2;
    train_together(&training, 1, 1, together);
    ck_assert_int_eq(training_run_alone(&training, alone, NULL, NULL), 0);
    ck_assert_mem_eq(together, alone, alone_bytes());
}
END_TEST

/* Some shares are empty, and the last batch of an epoch (2 rows) has a share for two of six. */
START_TEST(batches_smaller_than_the_world)
{
    static const struct network network = {2, {DATASET_PIXELS, 16, DATASET_CLASSES}};
    training.network = &network;
    training.plan.epochs = 1;
    training.plan.batch_rows = 4;
    training.plan.learning_rate = 0.01F; /* batches of four would not bear more */
    ck_assert_uint_eq(training_rows.row_count % 4, 2);
    network_initialize(&network, 1, alone);
    train_together(&training, 6, 3, together);
    ck_assert_int_eq(training_run_alone(&training, alone, NULL, NULL), 0);
    ck_assert(training_difference(&network, together, alone, NULL) <= 1e-5);
}
END_TEST

START_TEST(steps_of_an_epoch)
{
    static const struct {
        size_t batch, steps;
    } cases[] = {{1, 1438}, {2, 719}, {128, 12}, {1437, 2}, {1438, 1}, {5000, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        training.plan.batch_rows = cases[i].batch;
        ck_assert_uint_eq(training_step_count(&training), cases[i].steps);
    }
}
END_TEST

/* Counts what the loop calls, and fails where it is told to. */
struct counter {
    size_t begun, told, finished, epochs;
    size_t begin_fails, tell_fails, finish_fails, epoch_fails; /* the how manieth; 0: never */
    double loss_first, loss_last;
};

static int counter_begin(void *context, float **gradients)
{
    struct counter *counter = context;
    set_tensors(training.network, together, gradients);
    return ++counter->begun == counter->begin_fails ? -101 : 0;
}

static int counter_ready(void *context, size_t tensor)
{
    struct counter *counter = context;
    (void)tensor;
    return ++counter->told == counter->tell_fails ? -102 : 0;
}

static int counter_finish(void *context, float **gradients)
{
    struct counter *counter = context;
    (void)gradients;
    return ++counter->finished == counter->finish_fails ? -103 : 0;
}

static int counter_epoch(void *context, size_t epoch, const float *parameters, double loss_sum)
{
    struct counter *counter = context;
    ck_assert_ptr_eq(parameters, alone);
    ck_assert_uint_eq(epoch, ++counter->epochs);
    if (epoch == 1)
        counter->loss_first = loss_sum;
    counter->loss_last = loss_sum;
    return epoch == counter->epoch_fails ? -104 : 0;
}

static int count_run(struct counter *counter)
{
    struct training_exchange exchange = {.world_size = 1,
                                         .context = counter,
                                         .begin = counter_begin,
                                         .ready = counter_ready,
                                         .finish = counter_finish};
    return training_run(&training, &exchange, alone, counter_epoch, counter);
}

START_TEST(every_step_is_exchanged)
{
    struct counter counter = {0};
    training.plan.epochs = 3;
    ck_assert_int_eq(count_run(&counter), 0);
    ck_assert_uint_eq(counter.begun, 36);
    ck_assert_uint_eq(counter.told, 36 * 8);
    ck_assert_uint_eq(counter.finished, 36);
    ck_assert_uint_eq(counter.epochs, 3);
    ck_assert(counter.loss_last < counter.loss_first);
    ck_assert(counter.loss_first < 2.5 * (double)training_rows.row_count);
}
END_TEST

START_TEST(an_error_ends_the_training)
{
    training.plan.epochs = 3;
    struct counter begin = {.begin_fails = 2};
    ck_assert_int_eq(count_run(&begin), -101);
    ck_assert_uint_eq(begin.finished, 1);
    struct counter tell = {.tell_fails = 11};
    ck_assert_int_eq(count_run(&tell), -102);
    ck_assert_uint_eq(tell.told, 11);
    ck_assert_uint_eq(tell.finished, 1);
    struct counter finish = {.finish_fails = 5};
    float *before = allocate(network_parameter_count(&demo_network), sizeof(float));
    ck_assert_int_eq(count_run(&finish), -103);
    ck_assert_uint_eq(finish.begun, 5);
    struct counter epoch = {.epoch_fails = 2};
    ck_assert_int_eq(count_run(&epoch), -104);
    ck_assert_uint_eq(epoch.begun, 24);
    ck_assert_uint_eq(epoch.epochs, 2);

    /* A step whose exchange fails changes nothing. */
    memcpy(before, alone, alone_bytes());
    struct counter at_once = {.finish_fails = 1};
    ck_assert_int_eq(count_run(&at_once), -103);
    ck_assert_mem_eq(before, alone, alone_bytes());
    free(before);
}
END_TEST

/* Two steps of a rate that can be worked out: v = g1, then v = momentum * v + g2. */
START_TEST(momentum_carries_over)
{
    static const struct network network = {1, {DATASET_PIXELS, DATASET_CLASSES}};
    size_t count = network_parameter_count(&network);
    training.network = &network;
    training.plan.batch_rows = training_rows.row_count;
    training.plan.learning_rate = 0.25F;
    training.plan.momentum = 0.5F;
    training.plan.epochs = 1;
    network_initialize(&network, 1, alone);
    float begun = alone[count - 1];
    struct counter counter = {0};
    ck_assert_int_eq(count_run(&counter), 0);
    float v = together[count - 1]; /* the gradient */
    ck_assert_float_ne(v, 0.0F);
    ck_assert_float_eq(alone[count - 1], begun - 0.25F * v);

    training.plan.epochs = 2;
    network_initialize(&network, 1, alone);
    counter = (struct counter){0};
    ck_assert_int_eq(count_run(&counter), 0);
    float after = begun - 0.25F * v;
    v = 0.5F * v + together[count - 1];
    ck_assert_float_eq(alone[count - 1], after - 0.25F * v);
}
END_TEST

START_TEST(evaluate_shares_add_up)
{
    size_t whole, sum = 0;
    training.plan.epochs = 1;
    ck_assert_int_eq(training_run_alone(&training, alone, NULL, NULL), 0);
    ck_assert_int_eq(
        training_evaluate(&demo_network, alone, &test_rows, 0, test_rows.row_count, &whole), 0);
    for (int rank = 0; rank < 7; rank++) {
        size_t first, count, correct;
        training_share(test_rows.row_count, rank, 7, &first, &count);
        ck_assert_int_eq(
            training_evaluate(&demo_network, alone, &test_rows, first, count, &correct), 0);
        sum += correct;
    }
    ck_assert_uint_eq(sum, whole);
    ck_assert_int_eq(training_evaluate(&demo_network, alone, &test_rows, 0, 0, &sum), 0);
    ck_assert_uint_eq(sum, 0);
}
END_TEST

static void add_training(Suite *suite)
{
    TCase *tcase = tcase_create("training");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, training_setup, training_teardown);
    tcase_add_test(tcase, alone_reaches_the_accuracy);
    tcase_add_test(tcase, four_ranks_agree_with_one_process);
    tcase_add_test(tcase, again_gives_the_same_bits);
    tcase_add_test(tcase, one_rank_is_the_run_alone);
    tcase_add_test(tcase, batches_smaller_than_the_world);
    tcase_add_test(tcase, steps_of_an_epoch);
    tcase_add_test(tcase, every_step_is_exchanged);
    tcase_add_test(tcase, an_error_ends_the_training);
    tcase_add_test(tcase, momentum_carries_over);
    tcase_add_test(tcase, evaluate_shares_add_up);
    suite_add_tcase(suite, tcase);
}

int main(void)
{
    Suite *suite = suite_create("digits");
    TCase *tcase = tcase_create("orders");
    tcase_add_test(tcase, order_is_a_permutation_of_its_own);
    tcase_add_test(tcase, shares_cover_every_row_once);
    tcase_add_test(tcase, difference_is_of_the_worst_tensor);
    tcase_add_test(tcase, hash_is_fnv_1a);
    suite_add_tcase(suite, tcase);
    add_training(suite);
    return suite_main(suite);
}
