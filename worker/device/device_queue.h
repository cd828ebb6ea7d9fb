/* What is under way between a device and the arena: requests that wait for their streams, copies,
 * and the words that streams of the caller's wait for.
 *
 *   stream --event--> gate --> progress: slots --> copies out, and later in --> word --> stream
 *
 * A request gets an event on its stream and waits at a gate until that has occurred; nothing on the
 * library's streams waits for the caller's. Events of one gate ring in the order of the calls. An
 * event can only depend on requests that were asked for before it, so the oldest at every gate is
 * never behind what waits for it.
 *
 * Of each bell one ring is asked for at a time, for the oldest event behind it; when it has rung,
 * everything behind it is looked at. A device that has failed need not ring: without one, all is
 * looked at every DEVICE_LOOK_NS.
 *
 * Streams of the caller's may be full, and go on only when the driver does: nothing is put onto
 * them with the job's lock held. The caller holds it around every call; the copies of one request
 * go in order.
 *
 * Calls device.h, worker/progress and common/base.
 */
#ifndef WORKER_DEVICE_DEVICE_QUEUE_H
#define WORKER_DEVICE_DEVICE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "worker/device/device.h"
#include "worker/progress/progress.h"

#define DEVICE_LOOK_NS 100000000ull
/* Copies that are begun together end together: few large ones, so that the first of them need not
 * wait for the last, and many small ones. */
#define DEVICE_FLIGHT_BYTES (1u << 20)

/* Copies that were begun together. */
struct device_flight {
    void *event;
    uint32_t count;
    uint64_t bytes;
    struct progress_copy copies[DEVICE_COPIES_MAX];
    struct device_flight *prev, *next;
};

/* When a stream was seen to have come so far; 0: not yet. */
struct device_note {
    uint64_t occurred_ns;
};

/* A request at a gate, or a note. */
struct device_arrival {
    void *event;
    void *stream;
    struct request *request;  /* NULL: it has failed, or there is none */
    struct device_note *note; /* or NULL */
    struct device_arrival *prev, *next;
};

struct device_queue {
    struct device *device;
    struct progress *progress;
    struct device_flight *flights[DEVICE_LANES]; /* oldest first */
    struct device_flight *loading[DEVICE_LANES]; /* not begun yet, or NULL */
    struct device_flight *unbegun;               /* could not be begun */
    struct device_arrival *gates[DEVICE_GATES];  /* oldest first */
    struct device_flight *spare_flights;
    struct device_arrival *spare_arrivals;
    uint32_t bells;               /* bits: which bells will ring */
    uint64_t look_ns;             /* when to look without a ring */
    bool streams_waited;          /* some stream was made to wait for a word */
    struct device_arrival *waits; /* for the end of all such waits; NULL before that is asked for */
    uint32_t values[DEVICE_WORDS]; /* that were given for each word */
    uint16_t free_words[DEVICE_WORDS];
    uint32_t free_count;
};

/* A word that is written when a request is complete. Values of a word only grow, so that it can be
 * given to the next request while streams are still to come past a wait for this one's value. */
struct device_ticket {
    uint32_t word, value;
};

/* device: taken over on success. ERR_MEMORY. */
int device_queue_create(struct device_queue **queue, struct device *device,
                        struct progress *progress, struct error *error);
/* Frees it with its device. Nothing may be under way on the device. */
void device_queue_destroy(struct device_queue *queue);

/* An event for a stream of the caller's; NULL: *error says why there is none. */
struct device_arrival *device_queue_take(struct device_queue *queue, struct error *error);
/* Give back what device_queue_take gave, if nothing waits for it. */
void device_queue_give_back(struct device_queue *queue, struct device_arrival *arrival);

/* A request that is about to be submitted, its event recorded on its stream: a ticket for it, and
 * it waits at a gate. *ready: its stream has come to it already (progress_ready is the caller's
 * then). arrival is taken over. ERR_MEMORY, or what the driver says; nothing stays behind then. */
int device_queue_enter(struct device_queue *queue, struct device_arrival *arrival,
                       const struct request_ask *ask, struct request *request,
                       struct device_ticket *ticket, bool *ready, uint64_t now_ns,
                       struct error *error);
/* A note for a stream on which the arrival's event has been recorded. arrival is taken over; the
 * note must stay until it has occurred or is forgotten. */
int device_queue_note(struct device_queue *queue, struct device_arrival *arrival, void *stream,
                      struct device_note *note, uint64_t now_ns, struct error *error);
/* The note is about to go. */
void device_queue_forget(struct device_queue *queue, const struct device_note *note);
/* The request is complete, or was not submitted after all: write its word. */
void device_queue_leave(struct device_queue *queue, const struct request *request,
                        const struct device_ticket *ticket);

/* Take a copy over (PROGRESS_COPY); it is begun by device_queue_begin, or when there are enough. */
int device_queue_add(struct device_queue *queue, const struct progress_copy *copy, uint64_t now_ns,
                     struct error *error);
/* Begin the copies that were taken over. */
int device_queue_begin(struct device_queue *queue, uint64_t now_ns, struct error *error);
/* See what has come to its end, and tell progress. 1 when something has, 0 when not. */
int device_queue_poll(struct device_queue *queue, uint64_t now_ns, struct error *error);
/* Whether copies are under way, or requests at a gate. */
bool device_queue_busy(const struct device_queue *queue);
/* Whether copies are under way. */
bool device_queue_copying(const struct device_queue *queue);
/* When to call device_queue_poll though nothing has rung; UINT64_MAX when there is nothing. */
uint64_t device_queue_deadline_ns(const struct device_queue *queue);
/* After an error of device_queue_add, _begin or _poll, when the job has been failed for it: nobody
 * waits at the gates any more. When this returns no copy is under way: the GPU's driver has waited
 * for them, or it waits for nothing any more, and they are lost (device_copies_lost). */
void device_queue_abandon(struct device_queue *queue, uint64_t now_ns);

/* When no stream is made to wait for a word any more: ask that DEVICE_BELL_WAITS ring. 1: no stream
 * ever was; 0: the bell will ring, or the device fails. */
int device_queue_ring_waits(struct device_queue *queue, struct error *error);
/* After device_queue_ring_waits gave 0: 1 when all streams have come past their waits, which is so
 * before the bell rings; 0 when not. */
int device_queue_waits_done(struct device_queue *queue, struct error *error);

#endif
