#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "tests/lib/cuda/cuda_stand_in.h"
#include "worker/shoal.h"

#define PATH TEST_BUILD_DIR "/tests/lib/libcuda.so.1"

static void find(void *library, const char *name, void *place, size_t bytes)
{
    void *found = dlsym(library, name);
    ck_assert_msg(found != NULL, "%s: %s", name, dlerror());
    memcpy(place, &found, bytes);
}

static struct stand_in made;

static void stand_in_load(void)
{
    void *library = dlopen(PATH, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
#define FIND(name) find(library, "stand_in_" #name, (void *)&made.name, sizeof(made.name))
    FIND(seed);
    FIND(set_version);
    FIND(set_memory_operations);
    FIND(set_queues);
    FIND(set_devices);
    FIND(fail_call);
    FIND(break_device);
    FIND(copies_hold);
    FIND(copies_begun);
    FIND(functions_hold);
    FIND(calls);
    FIND(failed);
    FIND(unpinned);
    FIND(default_operations);
    FIND(late_frees);
    FIND(stream_make);
    FIND(stream_drop);
    FIND(stream_hold);
    FIND(stream_let_go);
    FIND(stream_copy);
    FIND(stream_finish);
    FIND(stream_limit);
    FIND(stream_refuse);
    FIND(live);
    made.path = PATH;
}

const struct stand_in *stand_in_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, stand_in_load);
    return &made;
}

void stand_in_open_device(struct shoal_job *job)
{
    struct shoal_device_options options = {
        .struct_size = sizeof(options), .library = stand_in_open()->path, .stream_waits = 1};
    ck_assert_msg(shoal_device_open(job, &options) == SHOAL_OK, "%s", shoal_error_text());
}

void stand_in_check_nothing_left(bool memory_too)
{
    struct stand_in_live live = stand_in_open()->live();
    ck_assert_int_eq(live.contexts, 0);
    ck_assert_int_eq(live.streams, 0);
    ck_assert_int_eq(live.events, 0);
    ck_assert_int_eq(live.registrations, 0);
    ck_assert_msg(!memory_too || live.allocations == 0,
                  "%d allocations left (made to fail: \"%s\")", live.allocations,
                  stand_in_open()->failed());
}

void stand_in_fail_each_call(void (*body)(int nth))
{
    const struct stand_in *cuda = stand_in_open();
    int nth = 0;
    do {
        cuda->fail_call(NULL, ++nth, STAND_IN_OUT_OF_MEMORY);
        body(nth);
    } while (cuda->failed()[0]);
    ck_assert_int_gt(nth, 101);
}
