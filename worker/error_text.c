#include "worker/error_text.h"

#include "worker/shoal.h"

static _Thread_local struct error last_error;

struct error *error_text_last(void)
{
    return &last_error;
}

int error_text_keep(const struct error *error)
{
    if (error != &last_error)
        last_error = *error;
    /* The daemon's own codes have no business here. */
    return error->code <= SHOAL_OK && error->code >= SHOAL_EAGAIN ? error->code : SHOAL_EPROTOCOL;
}
