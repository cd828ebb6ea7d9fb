/* The struct behind a fusion handle, shared by shoal_fusion.c, shoal_fusion_device.c and
 * shoal_fusion_times.c. Calls all below worker/api. */
#ifndef WORKER_API_FUSION_HANDLE_H
#define WORKER_API_FUSION_HANDLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "worker/device/device_fusion.h"
#include "worker/fusion/fusion.h"
#include "worker/fusion/plan.h"
#include "worker/job/job.h"
#include "worker/shoal.h"

enum fusion_phase { PHASE_GATHER, PHASE_REDUCE, PHASE_AGREE };

struct shoal_fusion {
    struct shoal_group *group;
    pthread_mutex_t lock;    /* taken before the job's */
    pthread_cond_t gathered; /* no thread is gathering any more */
    struct plan_parameter *parameters;
    void **gradients; /* [parameter]: the caller's memory, or NULL: in ours */
    uint32_t parameter_count;
    bool own_memory; /* some gradient is in ours */
    uint64_t threshold_bytes, first_buffer_bytes;
    bool threshold_given; /* else it follows from the group's servers */
    enum reduce_op op;

    uint32_t number; /* among those of its group, which are counted alike on all ranks */
    struct plan plan;
    struct fusion_step step;
    uint8_t *memory;             /* of all buffers, in the arena or on the device */
    struct device_fusion device; /* of buffers on a device */
    bool on_device;
    enum fusion_phase phase;
    bool waiting;         /* a thread is in shoal_fusion_wait */
    unsigned gathering;   /* threads copying a gradient */
    bool learned;         /* the plan is by the first step's order */
    bool freed;           /* by the caller; the rest goes with the job, its group may be gone */
    struct error failure; /* code 0, or what every further call fails with */

    struct shoal_request **requests;   /* [buffer] of this step */
    struct shoal_request **passed;     /* [buffer] of an earlier one: streams wait for them */
    struct fusion_interval *intervals; /* [buffer] */
    uint32_t finished;                 /* buffers of this step that have been waited for */
    uint64_t wait_started_ns;
    uint32_t *order; /* what rank 0 tells */
    struct shoal_request *order_request;
    struct shoal_fusion_statistics statistics;
    struct fusion_times *times;       /* of steps that streams have ended, oldest first */
    struct shoal_fusion *prev, *next; /* of the job */
};

/* Free all fusions of a job that is being closed: nothing is under way any more. */
void fusion_free_all(struct shoal_job *job);

/* Begin a call, which ends with job_leave: ERR_INVALID for NULL, or what job_enter says. */
int fusion_enter(const struct shoal_fusion *fusion, struct error *error);
/* The beginning of shoal_fusion_wait, with the fusion's lock held: nothing more comes into this
 * step, and what remains of it is sent. ERR_STATE while another thread waits, or the fusion's
 * failure. */
int fusion_enter_wait(struct shoal_fusion *fusion, struct error *error);
/* Do the part of shoal_fusion_wait between fusion_enter and job_leave. */
int fusion_wait(struct shoal_fusion *fusion, int timeout_ms, struct error *error);

/* --- worker/api/shoal_fusion_times.c: the fusion's lock is held, the job's is not */

/* A step ends on the stream, whose wait for the results is to come next: take the step's times. */
int fusion_times_begin(struct shoal_fusion *fusion, void *stream, struct error *error);
/* Put the times of the last step whose results are there into the statistics. */
void fusion_times_collect(struct shoal_fusion *fusion);
/* Take no step's times any more. */
void fusion_times_drop(struct shoal_fusion *fusion);
/* Free what is kept of steps, when the job goes, which frees the requests itself. */
void fusion_times_free(struct shoal_fusion *fusion);

/* When a buffer is full: what the caller has given, or what follows from the group's servers. */
void fusion_find_threshold(struct shoal_fusion *fusion);
/* Lay the buffers out by `order`, that rank 0 told; gradients in our memory move. Lock held. */
int fusion_replan(struct shoal_fusion *fusion, struct error *error);

/* --- worker/api/shoal_fusion_renew.c, for a job that becomes the next generation */

/* ERR_STATE while a thread is in a step of one of them. */
int fusion_check_all(struct shoal_job *job, struct error *error);
/* Put all fusions of the job's group of all ranks back to their first step, on every rank: a
 * newcomer has no other plan, and the loss may have kept the first step's order from some ranks.
 * Failures of the fusions are over, and so is a step that had begun. */
void fusion_renew_all(struct shoal_job *job);

/* The next step begins, lock held. */
void fusion_begin_step(struct shoal_fusion *fusion);

#endif
