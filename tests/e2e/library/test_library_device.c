/* Collectives on a device's memory over real daemons, on the stand-in for CUDA's driver:
 * shoalperf's exact values for every collective and type, results equal to those of memory bit for
 * bit, and what the others hear when one rank's device fails. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cuda/cuda_stand_in.h"
#include "tests/lib/suite.h"
#include "tests/lib/worker/library_job.h"
#include "tests/lib/worker/perf_run.h"

static void use_stand_in(void)
{
    setenv("SHOAL_CUDA_LIBRARY", stand_in_open()->path, 1);
}

START_TEST(test_every_type)
{
    use_stand_in();
    ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 2", "all_reduce --device cuda -o sum --count "
                                                          "1,1001,100003 -w 0 -n 1 -d all"),
                     3 * PERF_TYPES);
    ck_assert_int_eq(perf_rows_measured("--nodes 1 -n 3 --cpu-nodes 1",
                                        "all_reduce --device cuda --in-place -o avg "
                                        "-b 4 -e 4M -f 64 -w 1 -n 2 -d bfloat16"),
                     4);
}
END_TEST

START_TEST(test_every_collective)
{
    static const char *const collectives[] = {"reduce -r 1",
                                              "broadcast -r 2",
                                              "barrier",
                                              "all_gather",
                                              "all_gather --in-place",
                                              "reduce_scatter --uneven",
                                              "reduce_scatter --in-place",
                                              "gather --uneven -r 2",
                                              "scatter --in-place -r 1",
                                              "all_to_all --uneven",
                                              "all_to_all",
                                              "sendrecv"};
    use_stand_in();
    for (size_t i = 0; i < sizeof(collectives) / sizeof(collectives[0]); i++) {
        char words[200];
        snprintf(words, sizeof(words), "%s --device cuda -b 100 -e 1M -f 10000 -w 1 -n 1",
                 collectives[i]);
        int rows = perf_rows_measured("--nodes 2 -n 2", words);
        ck_assert_int_eq(rows, strcmp(collectives[i], "barrier") == 0 ? 1 : 2);
    }
}
END_TEST

/* The line that says which bits the ranks of a training run hold. */
static char *trained_bits(const char *device)
{
    const char *argv[] = {CLUSTER_BIN "shoalrun",
                          "--timeout",
                          "200",
                          "--nodes",
                          "2",
                          "-n",
                          "2",
                          "--",
                          CLUSTER_BIN "shoal-digits",
                          "--device",
                          device,
                          "--epochs",
                          "2",
                          "--accuracy-min",
                          "0.5",
                          "--no-verify",
                          NULL};
    struct process *process = process_run(argv);
    int code = process_wait(process, 240000);
    ck_assert_msg(code == 0, "exit code %d\n%.1000s\n%.1000s", code, process_output(process),
                  process_errors(process));
    const char *bits = strstr(process_output(process), "FNV-1a");
    ck_assert_ptr_nonnull(bits);
    char *line = strndup(bits, strcspn(bits, ")"));
    process_free(process);
    return line;
}

START_TEST(test_training)
{
    use_stand_in();
    char *in_memory = trained_bits("cpu"), *on_device = trained_bits("cuda");
    ck_assert_str_eq(in_memory, on_device);
    free(in_memory);
    free(on_device);
}
END_TEST

static void check_bits(struct library_rank *self)
{
    struct shoal_device_options options = {.struct_size = sizeof(options), .stream_waits = 1};
    shoal_group *world = shoal_world(self->job);
    const size_t counts[] = {7, 4096, 100001};
    const enum shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_BF16, SHOAL_F16, SHOAL_I64};
    GOOD(shoal_device_open(self->job, &options));
    void *stream = shoal_device_stream(self->job);
    for (size_t i = 0; i < 12; i++) {
        size_t count = counts[i / 4], bytes = count * shoal_dtype_bytes(dtypes[i % 4]);
        uint8_t *data = malloc(bytes), *expected = malloc(bytes);
        shoal_request *request;
        library_fill(dtypes[i % 4], data, count, self->rank, i);
        GOOD(shoal_all_reduce(world, data, expected, count, dtypes[i % 4], SHOAL_AVG, NULL));
        void *memory = shoal_device_alloc(self->job, bytes);
        GOOD(shoal_device_copy(self->job, memory, data, bytes));
        GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
        GOOD(shoal_all_reduce(world, memory, memory, count, dtypes[i % 4], SHOAL_AVG, &request));
        GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_HOST, NULL));
        GOOD(shoal_request_wait_stream(request, stream));
        shoal_request_free(request);
        GOOD(shoal_device_copy(self->job, data, memory, bytes));
        ck_assert_int_eq(memcmp(data, expected, bytes), 0);
        shoal_device_free(self->job, memory);
        free(data);
        free(expected);
    }
}

/* From whoever sends first, into memory of the device: the sender is known when the request is
 * complete. */
static void check_any_sender(struct library_rank *self)
{
    enum { EACH = 4, COUNT = 70000 };
    struct shoal_device_options options = {.struct_size = sizeof(options), .stream_waits = 1};
    shoal_group *world = shoal_world(self->job);
    int size = self->of->size, senders[EACH * LIBRARY_RANKS_MAX];
    int seen[LIBRARY_RANKS_MAX] = {0}, all = EACH * (size - 1);
    shoal_request *requests[EACH * LIBRARY_RANKS_MAX];
    GOOD(shoal_device_open(self->job, &options));
    void *stream = shoal_device_stream(self->job);
    int32_t *memory = shoal_device_alloc(self->job, sizeof(int32_t) * COUNT * (size_t)all);
    int32_t *host = malloc(sizeof(int32_t) * COUNT);
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
    if (self->rank == 0) {
        for (int i = 0; i < all; i++)
            GOOD(shoal_recv_any(world, memory + i * COUNT, COUNT, SHOAL_I32, 4, &senders[i],
                                &requests[i]));
        GOOD(shoal_request_wait_stream(requests[all - 1], stream));
        for (int i = 0; i < all; i++) {
            GOOD(shoal_wait(requests[i], -1));
            GOOD(shoal_device_copy(self->job, host, memory + i * COUNT, COUNT * sizeof(*host)));
            int first = senders[i] * 1000 + seen[senders[i]]++;
            for (int k = 0; k < COUNT; k++)
                if (host[k] != first + k)
                    ck_abort_msg("%d from %d: element %d is %d", i, senders[i], k, host[k]);
        }
    }
    for (int i = 0; self->rank > 0 && i < EACH; i++) {
        for (int k = 0; k < COUNT; k++)
            host[k] = self->rank * 1000 + i + k;
        GOOD(shoal_device_copy(self->job, memory, host, COUNT * sizeof(*host)));
        GOOD(shoal_send(world, memory, COUNT, SHOAL_I32, 0, 4, NULL));
    }
    GOOD(shoal_barrier(world, NULL));
    shoal_device_free(self->job, memory);
    free(host);
}

START_TEST(test_any_sender)
{
    use_stand_in();
    stand_in_open()->seed((uint64_t)_i);
    library_cluster_run(2, NULL, 2, check_any_sender, NULL);
}
END_TEST

START_TEST(test_same_bits_as_in_memory)
{
    use_stand_in();
    stand_in_open()->seed(3);
    library_cluster_run(2, NULL, 2, check_bits, NULL);
}
END_TEST

/* The daemon's limit reaches the library. */
static void check_limit(struct library_rank *self)
{
    struct shoal_device_options options = {.struct_size = sizeof(options), .stream_waits = 1};
    stand_in_open()->fail_call("cuMemHostRegister", 2, STAND_IN_OUT_OF_MEMORY); /* the arena */
    BAD(shoal_device_open(self->job, &options), SHOAL_EMEMORY,
        "(as much as is set by the daemon's limits.pinned_bytes)");
    ck_assert_ptr_nonnull(strstr(shoal_error_text(), "cannot pin 2.")); /* MiB: whole slots */
    GOOD(shoal_device_open(self->job, &options));
}

START_TEST(test_pinned_limit_of_the_daemon)
{
    use_stand_in();
    library_cluster_run(1, "{\"limits\": {\"pinned_bytes\": 3145728}}", 1, check_limit, NULL);
}
END_TEST

static void check_device_fails(struct library_rank *self)
{
    struct shoal_device_options options = {.struct_size = sizeof(options), .stream_waits = 1};
    shoal_group *world = shoal_world(self->job);
    int *blamed = self->of->argument, result = SHOAL_OK;
    GOOD(shoal_device_open(self->job, &options));
    void *stream = shoal_device_stream(self->job);
    float *memory = shoal_device_alloc(self->job, 1 << 20);
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
    GOOD(shoal_all_reduce(world, memory, memory, 1 << 18, SHOAL_F32, SHOAL_SUM, NULL));
    if (library_meet(self))
        stand_in_open()->fail_call("cuMemcpyAsync", 5, 719);
    library_meet(self);
    while (result == SHOAL_OK)
        result = shoal_all_reduce(world, memory, memory, 1 << 18, SHOAL_F32, SHOAL_SUM, NULL);
    if (result == SHOAL_ESYSTEM) {
        ck_assert_ptr_nonnull(strstr(shoal_error_text(), "GPU 0, stand-in: cuMemcpyAsync"));
        *blamed = self->rank;
    } else {
        ck_assert_msg(result == SHOAL_ELOST, "%d: %s", result, shoal_error_text());
        ck_assert_ptr_nonnull(strstr(shoal_error_text(), "rank "));
    }
    char heard[256];
    snprintf(heard, sizeof(heard), "%s", shoal_error_text());
    shoal_device_free(self->job, memory);
    library_meet(self);
    char who[32];
    snprintf(who, sizeof(who), "rank %d ", *blamed);
    ck_assert_msg(self->rank == *blamed || strstr(heard, who), "%s: %s", who, heard);
}

START_TEST(test_device_of_one_rank_fails)
{
    int blamed = -1;
    use_stand_in();
    stand_in_open()->set_version(12000); /* each chunk by a call of its own */
    struct cluster *cluster = cluster_start(2, NULL);
    library_job_run(cluster, "device", 2, check_device_fails, &blamed);
    ck_assert_int_ge(blamed, 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    stand_in_check_nothing_left(false);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("library_device");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 240);
    tcase_add_test(core, test_every_type);
    tcase_add_test(core, test_every_collective);
    tcase_add_test(core, test_training);
    tcase_add_loop_test(core, test_any_sender, 0, 2);
    tcase_add_test(core, test_same_bits_as_in_memory);
    tcase_add_test(core, test_pinned_limit_of_the_daemon);
    tcase_add_test(core, test_device_of_one_rank_fails);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
