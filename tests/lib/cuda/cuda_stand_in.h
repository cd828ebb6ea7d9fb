/* Controls of the stand-in for CUDA's driver library (tests/lib/cuda/cuda_stand_in.c), which tests
 * load in place of libcuda.so.1: its calls over host memory, every stream a thread that takes its
 * time.
 *
 * Memory of the "device" cannot be touched by the process: whoever does so, crashes. Copies finish
 * late, out of order between streams, by a seed. The library loads the stand-in by its path; a test
 * finds these functions in the same object (stand_in_open). With STAND_IN_DEVICES=0 in the
 * environment it is the driver of a host without a GPU.
 */
#ifndef TESTS_LIB_CUDA_CUDA_STAND_IN_H
#define TESTS_LIB_CUDA_CUDA_STAND_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Failures for fail_call and break_device (CUresult). */
#define STAND_IN_OUT_OF_MEMORY 2
#define STAND_IN_ILLEGAL_ADDRESS 700

struct shoal_job;

/* Counts of the objects that calls have made and not taken back. */
struct stand_in_live {
    int contexts, streams, events, registrations, allocations;
};

struct stand_in {
    const char *path; /* for struct shoal_device_options.library */
    void (*seed)(uint64_t seed);
    /* The driver's version, and so what it has: 12000, 12080 or 13000 (the default). */
    void (*set_version)(int version);
    /* Without it, streams cannot wait for words. */
    void (*set_memory_operations)(bool there);
    /* The streams of each priority share so many queues of the device, given to them in turn as
     * they are made: what waits on one of them holds up what was asked of the others later. 0, the
     * default: none is shared. Before streams are made. */
    void (*set_queues)(int count);
    /* Set how many devices there are, 1 (the default) or 2. Objects of one device must not be used
     * in the context of the other; streams of the test's own are the first one's. */
    void (*set_devices)(int count);
    /* The nth call from now on (1: the next) of this function, or of any when NULL, fails with
     * this CUresult. 0: no more. */
    void (*fail_call)(const char *function, int nth, int result);
    /* From now on the device has failed: every call says so, nothing on a stream goes on, no host
     * function is called. 0: healed, for the next job of the test. */
    void (*break_device)(int result);
    /* While held, copies that have begun do not end; they do after it, also when the device has
     * failed or the stream is gone meanwhile, as a copy engine may. How many have begun. */
    void (*copies_hold)(bool hold);
    int (*copies_begun)(void);
    /* While held, no host function is called: the driver's thread for them may be busy with one. */
    void (*functions_hold)(bool hold);
    /* Calls so far of this function, or of any. */
    long (*calls)(const char *function);
    /* The function that fail_call made fail; "" when none has. */
    const char *(*failed)(void);
    /* Copies between the device and memory that is not pinned. */
    long (*unpinned)(void);
    /* Return how many operations have been put onto the default stream. */
    long (*default_operations)(void);
    /* Memory of the device freed while something on a stream still was to use it. */
    long (*late_frees)(void);
    /* Streams of the test's own: made and dropped (what is on them still goes on); held, until they
     * are let go as often, behind what is on them by then; copying; until nothing is on them. */
    void *(*stream_make)(void);
    void (*stream_drop)(void *stream);
    void (*stream_hold)(void *stream);
    void (*stream_let_go)(void *stream);
    void (*stream_copy)(void *stream, void *to, const void *from, size_t bytes);
    void (*stream_finish)(void *stream);
    /* Let callers that add to the stream wait while it has `room` operations; 0: no limit. */
    void (*stream_limit)(void *stream, int room);
    /* The next so many events that are recorded on the stream fail, for want of memory. */
    void (*stream_refuse)(void *stream, int records);
    /* When the threads of all streams that were destroyed have ended. */
    struct stand_in_live (*live)(void);
};

/* Loads it; the same for all calls in a process. Aborts the test where it is not built. */
const struct stand_in *stand_in_open(void);

/* The job's device is the stand-in's. */
void stand_in_open_device(struct shoal_job *job);
/* All that the calls have made is taken back; memory of the device only if memory_too: of a job
 * that was closed in the middle, it may not be. */
void stand_in_check_nothing_left(bool memory_too);
/* Run body while the nth call of the driver fails for want of memory, for every n up to the first
 * of which there is no such call; those are more than 100. */
void stand_in_fail_each_call(void (*body)(int nth));

#endif
