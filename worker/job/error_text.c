#include "worker/job/error_text.h"

#include "common/base/clock.h"
#include "worker/shoal.h"

static _Thread_local struct {
    struct error error; /* the last */
    uint64_t at_ns;     /* when it was kept; 0: never */
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
    kept.at_ns = clock_now_ns();
    /* The daemon's own codes have no business here. */
    return error->code <= SHOAL_OK && error->code >= SHOAL_EAGAIN ? error->code : SHOAL_EPROTOCOL;
}

const char *error_text_recent(uint64_t age_ns)
{
    bool recent = kept.at_ns != 0 && clock_now_ns() - kept.at_ns < age_ns;
    return recent && kept.error.text[0] ? kept.error.text : NULL;
}

uint64_t error_text_thread(void)
{
    if (kept.mark == 0)
        kept.mark = clock_now_ns();
    return kept.mark;
}
