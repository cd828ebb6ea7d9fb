/* A build without a device's headers: there is none to open, so nothing else can be called. */
#include "worker/device/device.h"

#include <assert.h>

int device_open(struct device **device, int number, const char *library, int wake_fd,
                struct error *error)
{
    (void)device, (void)library, (void)wake_fd;
    return error_set(error, ERR_UNSUPPORTED,
                     "GPU %d: this library was built without CUDA (cuda.h was not found)", number);
}

void device_close(struct device *device)
{
    (void)device;
}

int device_number(const struct device *device)
{
    (void)device;
    return -1;
}

const char *device_name(const struct device *device)
{
    (void)device;
    return "";
}

const char *device_address(const struct device *device)
{
    (void)device;
    return "";
}

bool device_waits_for_words(const struct device *device)
{
    (void)device;
    return false;
}

static int none(struct error *error)
{
    assert(!"no device can be open");
    return error_set(error, ERR_UNSUPPORTED, "this library was built without CUDA");
}

int device_pin(struct device *device, void *memory, uint64_t bytes, struct error *error)
{
    (void)device, (void)memory, (void)bytes;
    return none(error);
}

int device_allocate(struct device *device, uint64_t bytes, void **memory, struct error *error)
{
    (void)device, (void)bytes, (void)memory;
    return none(error);
}

int device_free(struct device *device, void *memory, struct error *error)
{
    (void)device, (void)memory;
    return none(error);
}

void *device_stream(struct device *device)
{
    (void)device;
    return NULL;
}

int device_transfer(struct device *device, void *to, const void *from, uint64_t bytes,
                    struct error *error)
{
    (void)device, (void)to, (void)from, (void)bytes;
    return none(error);
}

int device_copy_on(struct device *device, void *stream, const struct device_copy *copies,
                   uint32_t count, struct error *error)
{
    (void)device, (void)stream, (void)copies, (void)count;
    return none(error);
}

int device_zero_on(struct device *device, void *stream, void *memory, uint64_t bytes,
                   struct error *error)
{
    (void)device, (void)stream, (void)memory, (void)bytes;
    return none(error);
}

int device_follow_on(struct device *device, void *stream, void *event, struct error *error)
{
    (void)device, (void)stream, (void)event;
    return none(error);
}

int device_finish_on(struct device *device, void *stream, struct error *error)
{
    (void)device, (void)stream;
    return none(error);
}

int device_clear(struct device *device, void *memory, uint64_t bytes, struct error *error)
{
    (void)device, (void)memory, (void)bytes;
    return none(error);
}

int device_event_create(struct device *device, void **event, struct error *error)
{
    (void)device, (void)event;
    return none(error);
}

void device_event_destroy(struct device *device, void *event)
{
    (void)device, (void)event;
}

int device_event_record(struct device *device, void *event, void *stream, struct error *error)
{
    (void)device, (void)event, (void)stream;
    return none(error);
}

int device_event_done(struct device *device, void *event, struct error *error)
{
    (void)device, (void)event;
    return none(error);
}

int device_copy(struct device *device, enum device_lane lane, const struct device_copy *copies,
                uint32_t count, void *event, bool *begun, struct error *error)
{
    (void)device, (void)lane, (void)copies, (void)count, (void)event, (void)begun;
    return none(error);
}

void device_settle(struct device *device)
{
    (void)device;
}

bool device_copies_lost(const struct device *device)
{
    (void)device;
    return false;
}

int device_ring_after(struct device *device, unsigned bell, void *event, struct error *error)
{
    (void)device, (void)bell, (void)event;
    return none(error);
}

uint32_t device_rung(struct device *device)
{
    (void)device;
    return 0;
}

_Atomic uint32_t *device_word(struct device *device, uint32_t index)
{
    (void)device, (void)index;
    return NULL;
}

int device_wait_for_word(struct device *device, void *stream, uint32_t index, uint32_t value,
                         void *event, struct error *error)
{
    (void)device, (void)stream, (void)index, (void)value, (void)event;
    return none(error);
}

bool device_waits_lost(const struct device *device)
{
    (void)device;
    return false;
}
