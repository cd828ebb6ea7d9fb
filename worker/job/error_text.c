#include "worker/job/error_text.h"

#include "common/base/clock.h"
#include "worker/shoal.h"

static _Thread_local struct {
    struct error error; /* the last */
    uint64_t mark;      /* 0: not asked for yet; else the time when it was */
} kept;

struct error *error_text_last(void)
{
    return &kept.error;
}

int error_text_keep(const struct error *error)
{
    if (error != &kept.error)
        kept.error = *error;
    /* The daemon's own codes have no business here. */
    return error->code <= SHOAL_OK && error->code >= SHOAL_EAGAIN ? error->code : SHOAL_EPROTOCOL;
}

uint64_t error_text_thread(void)
{
    if (kept.mark == 0)
        kept.mark = clock_now_ns();
    return kept.mark;
}
