/* Data that waits in a stream to or from its user, charged to his account: output that he does not
 * read, descriptors. */
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "server/control/ground/control_internal.h"

/* False: that is too much, and nothing has changed. */
static bool account_waiting(struct control_stream *stream, enum account_kind kind,
                            uint64_t *charged, uint64_t amount)
{
    struct account_book *accounts = &stream->control->accounts;
    struct error error;
    if (!stream->with_descriptors)
        return true;
    if (amount > *charged &&
        account_charge(accounts, stream->uid, kind, amount - *charged, &error) < 0)
        return false;
    if (amount < *charged)
        account_release(accounts, stream->uid, kind, *charged - amount);
    *charged = amount;
    return true;
}

/* Output of so many bytes. */
bool control_account_output(struct control_stream *stream, size_t bytes)
{
    return account_waiting(stream, ACCOUNT_OUTPUT, &stream->charged_bytes,
                           bytes > CONTROL_FREE_OUTPUT_BYTES ? bytes - CONTROL_FREE_OUTPUT_BYTES
                                                             : 0);
}

/* Charge the descriptors that the stream has, and some more. Descriptors that are sent and not read
 * count for the kernel as open files of the daemon's user, who may have only so many in all
 * (RLIMIT_NOFILE). */
static bool account_descriptors(struct control_stream *stream, uint32_t more)
{
    int unread;
    if (stream->sent_count > 0 && ioctl(stream->fd, SIOCOUTQ, &unread) == 0 && unread == 0)
        stream->sent_count = 0;
    return account_waiting(stream, ACCOUNT_DESCRIPTORS, &stream->charged_numbers,
                           (uint64_t)stream->descriptor_count + stream->out_count +
                               stream->sent_count + more);
}

/* Room for one more to be sent; of the user's other streams some may have been read since, and some
 * descriptors closed. */
bool control_account_has_room(struct control_stream *stream)
{
    struct control_stream *other;
    if (stream->out_count >= CONTROL_DESCRIPTORS_OUT_MAX)
        return false;
    if (account_descriptors(stream, 1))
        return true;
    DL_FOREACH(stream->control->streams, other)
    {
        if (other->with_descriptors && other->uid == stream->uid && other->sent_count > 0)
            account_descriptors(other, 0);
    }
    control_closer_sweep(stream->control);
    return account_descriptors(stream, 1);
}

bool control_account_descriptors(struct control_stream *stream)
{
    if (account_descriptors(stream, 0))
        return true;
    control_closer_sweep(stream->control); /* some may be closed since */
    return account_descriptors(stream, 0);
}

bool control_account_is_full(const struct control *control, uint32_t uid)
{
    uint64_t used = account_used(&control->accounts, uid, ACCOUNT_DESCRIPTORS);
    return used > CONTROL_DESCRIPTORS_SENT &&
           account_is_beyond(&control->accounts, uid, ACCOUNT_DESCRIPTORS,
                             used - CONTROL_DESCRIPTORS_SENT);
}

void control_account_clear(struct control_stream *stream)
{
    account_waiting(stream, ACCOUNT_OUTPUT, &stream->charged_bytes, 0);
    account_waiting(stream, ACCOUNT_DESCRIPTORS, &stream->charged_numbers, 0);
}
