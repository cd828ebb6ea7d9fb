/* Requests that a device must refuse, memory that cannot be pinned, and every call of the driver
 * failing in turn: what the error says, and that nothing is left. All run on the stand-in for
 * CUDA's driver. */
#include "worker/shoal.h"

#include "tests/lib/cuda/cuda_stand_in.h"
#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void run(const struct fake_daemon_options *options, void (*body)(struct member *))
{
    world_run(options, body);
    stand_in_check_nothing_left(true);
}

static void check_refusals(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    shoal_group *world = shoal_world(member->job);
    float host[4] = {0};
    shoal_request *request;
    BAD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, NULL), SHOAL_ESTATE, "no device");
    BAD(shoal_device_copy(member->job, host, host, 1), SHOAL_ESTATE, "no device");
    ck_assert_ptr_null(shoal_device_alloc(member->job, 1));
    ck_assert_ptr_null(shoal_device_stream(member->job));
    struct shoal_device_options options = {.struct_size = 1};
    BAD(shoal_device_open(member->job, &options), SHOAL_EINVALID, "struct_size");
    options = (struct shoal_device_options){sizeof(options), .library = "/nowhere/libcuda.so.1"};
    BAD(shoal_device_open(member->job, &options), SHOAL_EUNSUPPORTED, "/nowhere/libcuda.so.1");
    options.library = "libm.so.6";
    BAD(shoal_device_open(member->job, &options), SHOAL_EUNSUPPORTED, "libm.so.6 has no cu");
    options.library = cuda->path;
    options.number = 1;
    BAD(shoal_device_open(member->job, &options), SHOAL_EINVALID, "GPU 1: this process has 1");
    options.number = 0;
    setenv("STAND_IN_DEVICES", "0", 1);
    BAD(shoal_device_open(member->job, &options), SHOAL_EUNSUPPORTED,
        "GPU 0: cuInit: CUDA_ERROR_NO_DEVICE (100");
    unsetenv("STAND_IN_DEVICES");
    cuda->set_version(11080);
    BAD(shoal_device_open(member->job, &options), SHOAL_EUNSUPPORTED, "for CUDA 11.8");
    cuda->set_version(13000);
    GOOD(shoal_device_open(member->job, &options));
    BAD(shoal_device_open(member->job, &options), SHOAL_ESTATE, "GPU 0");
    BAD(shoal_group_set_stream(world, (enum shoal_memory)2, NULL), SHOAL_EINVALID, "2 is no");
    GOOD(shoal_all_reduce(world, host, host, 4, SHOAL_F32, SHOAL_SUM, &request));
    BAD(shoal_request_wait_stream(request, NULL), SHOAL_EINVALID, "not on a device");
    BAD(shoal_request_wait_stream(NULL, NULL), SHOAL_EINVALID, "NULL");
    GOOD(shoal_wait(request, -1));
}

START_TEST(test_refusals)
{
    run(&(struct fake_daemon_options){.world_size = 1}, check_refusals);
}
END_TEST

/* More at once than words that streams can wait for; when one is complete, the next is taken. */
static void check_most(struct member *member)
{
    enum { MOST = 4096 };
    const struct stand_in *cuda = stand_in_open();
    shoal_group *world = shoal_world(member->job);
    void *stream = cuda->stream_make();
    shoal_request *requests[MOST + 1];
    stand_in_open_device(member->job);
    float *data = shoal_device_alloc(member->job, (MOST + 1) * sizeof(*data)); /* each its own */
    cuda->stream_hold(stream);
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream));
    for (int i = 0; i < MOST; i++)
        GOOD(shoal_all_reduce(world, data + i, data + i, 1, SHOAL_F32, SHOAL_SUM, &requests[i]));
    float *next = data + MOST;
    BAD(shoal_all_reduce(world, next, next, 1, SHOAL_F32, SHOAL_SUM, &requests[MOST]),
        SHOAL_EMEMORY, "4096 collectives on GPU 0 are under way: the most");
    cuda->stream_let_go(stream);
    GOOD(shoal_wait(requests[0], -1));
    GOOD(shoal_all_reduce(world, next, next, 1, SHOAL_F32, SHOAL_SUM, &requests[MOST]));
    for (int i = 1; i <= MOST; i++)
        GOOD(shoal_wait(requests[i], -1));
    shoal_device_free(member->job, data);
    cuda->stream_drop(stream);
}

START_TEST(test_most)
{
    run(&(struct fake_daemon_options){.world_size = 1}, check_most);
}
END_TEST

/* Check that the error of memory that cannot be pinned says how much was asked for, and what
 * limited it. */
static void check_pinned(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    static const struct {
        uint64_t option;
        const char *environment;
        rlim_t locked;
        const char *size, *words;
    } cases[] = {
        {0, NULL, 0, "cannot pin 4 MiB of the arena: GPU 0, stand-in: cuMemHostRegister",
         "(as much as is set by the daemon's limits.pinned_bytes)"},
        {6 << 20, NULL, 0, "cannot pin 4 MiB", "set by the daemon's limits.pinned_bytes)"},
        {1 << 20, "8388608", 0, "cannot pin 1 MiB", "set by options.pinned_bytes)"},
        {0, "2097152", 0, "cannot pin 2 MiB", "set by SHOAL_PINNED_BYTES)"},
        {0, "8388608", 0, "cannot pin 4 MiB", "set by the daemon's limits.pinned_bytes)"},
        {0, NULL, 65536, "cannot pin 4 MiB",
         "the limit on locked memory (RLIMIT_MEMLOCK, ulimit -l) is 64 KiB"},
    };
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_device_options options = {sizeof(options), .library = cuda->path,
                                               .pinned_bytes = cases[i].option};
        struct rlimit lower = {cases[i].locked ? cases[i].locked : limit.rlim_cur, limit.rlim_max};
        if (cases[i].environment)
            setenv("SHOAL_PINNED_BYTES", cases[i].environment, 1);
        ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &lower), 0);
        cuda->fail_call("cuMemHostRegister", 2,
                        STAND_IN_OUT_OF_MEMORY); /* the first is of the words */
        BAD(shoal_device_open(member->job, &options), SHOAL_EMEMORY, cases[i].size);
        ck_assert_msg(strstr(shoal_error_text(), cases[i].words) != NULL, "%s", shoal_error_text());
        ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
        unsetenv("SHOAL_PINNED_BYTES");
    }
    setenv("SHOAL_PINNED_BYTES", "all", 1);
    BAD(shoal_device_open(member->job, NULL), SHOAL_EINVALID, "SHOAL_PINNED_BYTES");
    unsetenv("SHOAL_PINNED_BYTES");
}

static void check_all_pinned(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    struct shoal_device_options options = {sizeof(options), .library = cuda->path,
                                           .stream_waits = 1};
    cuda->fail_call("cuMemHostRegister", 2, STAND_IN_OUT_OF_MEMORY);
    BAD(shoal_device_open(member->job, &options), SHOAL_EMEMORY, "cannot pin 8 MiB of the arena");
    ck_assert_msg(strstr(shoal_error_text(), "(all of it)") != NULL, "%s", shoal_error_text());
    GOOD(shoal_device_open(member->job, &options));
}

START_TEST(test_pinned)
{
    run(&(struct fake_daemon_options){.world_size = 1, .pinned_bytes = 4 << 20}, check_pinned);
    run(&(struct fake_daemon_options){.world_size = 1, .pinned_bytes = 8 << 20}, check_all_pinned);
}
END_TEST

/* Something of all that a job does with its device, until a call fails; the failure says which of
 * the driver's calls it was. */
static bool use_device(struct member *member)
{
    const struct stand_in *cuda = stand_in_open();
    shoal_group *world = shoal_world(member->job);
    struct shoal_device_options options = {
        .struct_size = sizeof(options), .library = cuda->path, .stream_waits = 1};
    float values[4000] = {0}, *memory = NULL;
    shoal_request *requests[4] = {NULL};
    int result = shoal_device_open(member->job, &options);
    void *stream = shoal_device_stream(member->job);
    if (result == SHOAL_OK && !(memory = shoal_device_alloc(member->job, sizeof(values))))
        result = SHOAL_ESYSTEM;
    if (result == SHOAL_OK)
        result = shoal_device_copy(member->job, memory, values, sizeof(values));
    if (result == SHOAL_OK)
        result = shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, stream);
    for (int i = 0; i < 4 && result == SHOAL_OK; i++) {
        float *data = memory + i * 1000;
        result =
            i == 3 ? shoal_all_to_all(world, memory, data, 1000, SHOAL_F32, &requests[i])
                   : shoal_all_reduce(world, data, data, 1000, SHOAL_F32, SHOAL_SUM, &requests[i]);
        if (result == SHOAL_OK)
            result = shoal_request_wait_stream(requests[i], stream);
    }
    bool good = result == SHOAL_OK;
    if (!good)
        ck_assert_msg(strstr(shoal_error_text(), cuda->failed()) != NULL,
                      "%s failed, and it says: %s", cuda->failed(), shoal_error_text());
    for (int i = 0; i < 4 && requests[i]; i++) {
        if (shoal_wait(requests[i], -1) != SHOAL_OK) {
            ck_assert_msg(strstr(shoal_error_text(), cuda->failed()) != NULL,
                          "%s failed, and it says: %s", cuda->failed(), shoal_error_text());
            good = false;
        }
    }
    if (stream) /* a copy may not have been waited for */
        cuda->stream_finish(stream);
    shoal_device_free(member->job, memory);
    return good;
}

static void check_any_call(struct member *member)
{
    use_device(member);
}

static void run_any_call(int nth)
{
    (void)nth;
    run(&(struct fake_daemon_options){.world_size = 1, .seed = 1}, check_any_call);
}

START_TEST(test_any_call_fails)
{
    stand_in_open()->set_version(_i % 2 ? 13000 : 12000);
    stand_in_fail_each_call(run_any_call);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_refusals");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 240);
    tcase_add_test(core, test_refusals);
    tcase_add_test(core, test_most);
    tcase_add_test(core, test_pinned);
    tcase_add_loop_test(core, test_any_call_fails, 0, 2);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
