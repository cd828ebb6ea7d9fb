#include "server/exchange/node/replay.h"

#include <inttypes.h>
#include <string.h>

#include "server/exchange/ground/archive.h"
#include "server/exchange/ground/post.h"
#include "server/exchange/ground/submission.h"
#include "server/exchange/model/ask.h"
#include "server/exchange/model/roster.h"

bool replay_is(const struct exchange_group *group, const struct wire_ask *ask)
{
    return route_replay(ask->kind, ask->block, group->members.size) != ROUTE_SEND;
}

void replay_begin_here(struct collective *replay)
{
    replay->replayed = archive_find(replay->group, replay->sequence, &replay->ask);
    replay->refused = !replay->replayed;
}

static int replay_check(const struct exchange_group *group, uint32_t node_index,
                        const struct wire_header *header, struct error *error)
{
    int result = submission_check_contribution(group, node_index, header, error);
    if (result != 0)
        return result;
    struct route route = ask_route(group, &header->ask);
    if (header->type == WIRE_CONTRIBUTION && (header->sequence & WIRE_SEND_SEQUENCE) &&
        group_rank_node(group, route.to) == group->members.nodes[node_index])
        return 0;
    return error_set(error, ERR_PROTOCOL, "a replay of number %" PRIu64 " that makes no sense",
                     header->sequence);
}

int replay_answer(struct exchange_group *group, uint32_t node_index,
                  const struct wire_header *header, struct buffer *buffer, struct error *error)
{
    struct exchange *exchange = group->job->exchange;
    struct layout layout;
    int result = replay_check(group, node_index, header, error);
    if (result != 0)
        return result;
    uint32_t bytes = 0;
    struct archived *archived = archive_find(group, header->sequence, &header->ask);
    if (archived && ask_layout(group, &header->ask, header->sequence, &layout) == 0) {
        uint32_t element_bytes = ask_element_bytes(&header->ask);
        struct layout_chunk extent = layout_chunk(&layout, header->chunk);
        bytes = (uint32_t)(extent.count * element_bytes);
        if (bytes > 0)
            memcpy(buffer->data + WIRE_HEADER_BYTES, archived->data + extent.first * element_bytes,
                   bytes);
    }
    archive_give_back(exchange, archived);
    struct exchange_send *send = send_create(
        group, group->members.nodes[node_index], WIRE_RESULT, header->sequence, header->chunk,
        &header->ask, bytes > 0 ? buffer->data + WIRE_HEADER_BYTES : NULL, bytes);
    buffer_hold(buffer);
    send->buffer = buffer;
    send_submit(exchange, send);
    return 0;
}
