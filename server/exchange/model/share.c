#include "server/exchange/model/share.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <utlist.h>

struct share *share_join(struct exchange *exchange, uint32_t user)
{
    struct share *share;
    DL_FOREACH(exchange->shares, share)
    {
        if (share->user == user) {
            share->jobs++;
            return share;
        }
    }
    share = calloc(1, sizeof(*share));
    if (!share)
        return NULL;
    share->user = user;
    share->jobs = 1;
    DL_APPEND(exchange->shares, share);
    return share;
}

void share_leave(struct exchange *exchange, struct share *share)
{
    if (--share->jobs > 0)
        return;
    DL_DELETE(exchange->shares, share);
    free(share);
}

void share_keep(struct exchange_group *group, uint64_t bytes)
{
    group->job->kept_bytes += bytes;
    group->job->share->kept_bytes += bytes;
}

void share_let_go(struct exchange_group *group, uint64_t bytes)
{
    group->job->kept_bytes -= bytes;
    group->job->share->kept_bytes -= bytes;
}

int share_check(const struct exchange_group *group, uint64_t bytes, struct error *error)
{
    const struct exchange_options *options = &group->job->exchange->options;
    const struct share *share = group->job->share;
    if (options->kept_bytes == 0 || share->kept_bytes + bytes <= options->kept_bytes)
        return 0;
    return error_set(error, ERR_MEMORY,
                     "the requests of user %" PRIu32 " on node %s take more than %" PRIu64
                     " bytes of its memory, a sixteenth of limits.memory_bytes",
                     share->user, options->node_names[options->self], options->kept_bytes);
}

int share_promise(struct exchange *exchange, const struct share *share, uint64_t bytes, bool any,
                  struct error *error)
{
    const struct exchange_options *options = &exchange->options;
    struct quota *quota = &exchange->promised;
    quota->what = "bytes of chunk buffers and shared memory";
    quota->key = "limits.memory_bytes";
    quota->node = options->node_names[options->self];
    quota->limit = buffer_pool_limit_bytes(options->pool);
    quota->own_user = options->own_user;
    if (!(any && quota_used(quota, share->user) == 0) &&
        quota_check(quota, share->user, bytes, error) != 0)
        return ERR_MEMORY;
    if (quota_take(quota, share->user, bytes) != 0)
        return error_set(error, ERR_MEMORY, "no memory for a user");
    return 0;
}

void share_return(struct exchange *exchange, const struct share *share, uint64_t bytes)
{
    quota_give_back(&exchange->promised, share->user, bytes);
}

void group_mark_dirty(struct exchange_group *group)
{
    struct exchange *exchange = group->job->exchange;
    struct share *share = group->job->share;
    if (group->is_dirty)
        return;
    group->is_dirty = true;
    if (!share->dirty)
        DL_APPEND2(exchange->dirty, share, prev_dirty, next_dirty);
    DL_APPEND2(share->dirty, group, previous_dirty, next_dirty);
}

void group_unmark_dirty(struct exchange_group *group)
{
    struct exchange *exchange = group->job->exchange;
    struct share *share = group->job->share;
    if (!group->is_dirty)
        return;
    group->is_dirty = false;
    DL_DELETE2(share->dirty, group, previous_dirty, next_dirty);
    if (!share->dirty)
        DL_DELETE2(exchange->dirty, share, prev_dirty, next_dirty);
}

struct exchange_group *share_take_group(struct exchange *exchange)
{
    struct share *share = exchange->dirty;
    if (!share)
        return NULL;
    struct exchange_group *group = share->dirty;
    assert(group);
    group_unmark_dirty(group);
    if (share->dirty && share->next_dirty) {
        DL_DELETE2(exchange->dirty, share, prev_dirty, next_dirty);
        DL_APPEND2(exchange->dirty, share, prev_dirty, next_dirty);
    }
    return group;
}
