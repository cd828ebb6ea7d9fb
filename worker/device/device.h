/* A device with memory of its own, a GPU, as far as the library needs one: pinned memory, copies by
 * its copy engines, events, and streams that wait for a word in memory. Nothing here runs code on
 * it, waits for all of it, or uses its default stream for work of the library's own.
 *
 * worker/device/device_cuda.c is the one implementation: over CUDA's driver library, loaded at run
 * time; every build has it. worker/device/device_queue.h keeps what is under way on a device.
 *
 * Calls may come from any thread. The caller makes calls on the lanes, bells and words one at a
 * time; device_close is the last one. Calls for the device's own memory, events, and streams of the
 * caller's may come at any time, and must not hold up the others, since a stream that is full
 * blocks a thread that adds to it until it goes on. Streams are the framework's handles (CUstream,
 * which cudaStream_t is too; NULL is its default stream). Every call that fails sets a text with
 * the driver's function, its words and the device. The code calls common/base.
 */
#ifndef WORKER_DEVICE_DEVICE_H
#define WORKER_DEVICE_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define DEVICE_NAME_BYTES 64
#define DEVICE_WORDS 4096u     /* that streams can wait for */
#define DEVICE_COPIES_MAX 256u /* at once */
#define DEVICE_GATES 4u

/* The two streams of copies, one for each copy engine. */
enum device_lane { DEVICE_OUT, DEVICE_IN, DEVICE_LANES };

/* Bells: one for each lane, for each gate for streams of the caller's, and for the end of all waits
 * for words. */
enum device_bell {
    DEVICE_BELL_OUT = DEVICE_OUT,
    DEVICE_BELL_IN = DEVICE_IN,
    DEVICE_BELL_GATE, /* and DEVICE_GATES - 1 more */
    DEVICE_BELL_WAITS = DEVICE_BELL_GATE + DEVICE_GATES,
    DEVICE_BELLS
};

struct device_copy {
    void *to;
    const void *from;
    uint64_t bytes;
};

struct device;

/* number: as the process counts its devices. library: of the driver; NULL: libcuda.so.1. wake_fd:
 * an eventfd that is written when a bell rings; a copy of it is kept. ERR_UNSUPPORTED (not in this
 * build, no driver, too old, no device at all), ERR_INVALID (no such device), ERR_MEMORY,
 * ERR_SYSTEM. */
int device_open(struct device **device, int number, const char *library, int wake_fd,
                struct error *error);
/* Close the device; nothing may be under way. Resources that the driver refuses to give back stay
 * the driver's. */
void device_close(struct device *device);

int device_number(const struct device *device);
const char *device_name(const struct device *device);
/* PCI address as in /sys/bus/pci/devices: "0000:1b:00.0". */
const char *device_address(const struct device *device);
/* Why streams may not wait for words; NULL: they may. The text stays the caller's. */
void device_forbid_waits(struct device *device, const char *why);
const char *device_no_waits(const struct device *device);

/* Pin memory of the process; once a device. ERR_MEMORY, ERR_SYSTEM. Unpinned by device_close. */
int device_pin(struct device *device, void *memory, uint64_t bytes, struct error *error);

/* The calling thread keeps the device's context on top of its own from its next call on, until it
 * lets go of it, which it must before it runs anything else that may ask for a context. One thread
 * at a time; device_let_go of another one does nothing. */
void device_keep(struct device *device);
void device_let_go(struct device *device);

/* Memory of the device, for programs without a framework. ERR_MEMORY. */
int device_allocate(struct device *device, uint64_t bytes, void **memory, struct error *error);
int device_free(struct device *device, void *memory, struct error *error);
/* A stream, for programs without a framework; it is the device's. */
void *device_stream(struct device *device);
/* Copy to, from or on the device in the order of device_stream, and wait for it. At any time. */
int device_transfer(struct device *device, void *to, const void *from, uint64_t bytes,
                    struct error *error);

/* Put up to DEVICE_COPIES_MAX copies onto a stream of the caller's, in no order among themselves.
 * At any time, as the three calls that follow. */
int device_copy_on(struct device *device, void *stream, const struct device_copy *copies,
                   uint32_t count, struct error *error);
/* Put zeroes onto a stream of the caller's. */
int device_zero_on(struct device *device, void *stream, void *memory, uint64_t bytes,
                   struct error *error);
/* Make work that comes onto the stream next wait for the event as it was last recorded. */
int device_follow_on(struct device *device, void *stream, void *event, struct error *error);
/* Wait until what is on the stream is done. */
int device_finish_on(struct device *device, void *stream, struct error *error);
/* Zero memory of the device, and wait for that. */
int device_clear(struct device *device, void *memory, uint64_t bytes, struct error *error);

/* An event, the caller's to destroy. */
int device_event_create(struct device *device, void **event, struct error *error);
void device_event_destroy(struct device *device, void *event);
/* The event occurs when what is on the stream now is done. */
int device_event_record(struct device *device, void *event, void *stream, struct error *error);
/* Record the event, and return 1 when it has occurred already, 0 when not. */
int device_event_record_done(struct device *device, void *event, void *stream, struct error *error);
/* 1 when it has occurred, 0 when not; an error when the device has failed. */
int device_event_done(struct device *device, void *event, struct error *error);

/* Up to DEVICE_COPIES_MAX copies on a lane, or none, in one call where the driver has that, and an
 * event when all of the lane are done; NULL: a later one tells. On an error some may have been
 * begun all the same: *begun says that the event will tell of them; else none is under way. */
int device_copy(struct device *device, enum device_lane lane, const struct device_copy *copies,
                uint32_t count, void *event, bool *begun, struct error *error);

/* After an error: wait for the copies on the lanes, as far as the driver still does. */
void device_settle(struct device *device);
/* Copies were begun whose end the driver does not tell any more: a device that has failed for good
 * answers every call at once, with its error, whether its copy engines have come to an end or not.
 * The memory that they may write to must stay as it is until the process ends; so must the device.
 */
bool device_copies_lost(const struct device *device);

/* Ring the bell when the event has occurred: one event for a bell at a time. A device that has
 * failed may never ring: look at device_event_done from time to time. DEVICE_BELL_WAITS rings when
 * all streams have come past their waits for words, and the event occurs then. */
int device_ring_after(struct device *device, unsigned bell, void *event, struct error *error);
/* The bells, as bits, that have rung since the last call: for these the event has occurred. */
uint32_t device_rung(struct device *device);

/* Return one of the words; the host writes it, streams wait until (int32_t)(word - value) >= 0. */
_Atomic uint32_t *device_word(struct device *device, uint32_t index);
/* Make the stream wait for the value in word number `index`. event: one that is free, and is free
 * again afterwards. On an error the stream may wait all the same. */
int device_wait_for_word(struct device *device, void *stream, uint32_t index, uint32_t value,
                         void *event, struct error *error);
/* After an error of device_wait_for_word: some stream waits, and nothing tells when it has come
 * past its wait. The words must stay until the process ends; so must the device. */
bool device_waits_lost(const struct device *device);

#endif
