#include "server/exchange/model/disagreement.h"

#include <inttypes.h>

#include "common/text/text.h"

void disagreement_init(struct disagreement *all, uint32_t group, uint32_t size, uint64_t sequence)
{
    *all = (struct disagreement){.group = group, .size = size, .sequence = sequence};
}

void disagreement_add(struct disagreement *all, uint32_t rank, const struct wire_ask *ask)
{
    uint32_t i = 0;
    while (i < all->ask_count && !wire_ask_equal(&all->asks[i].ask, ask))
        i++;
    if (i == DISAGREEMENT_ASKS) {
        all->others++;
        return;
    }
    if (i == all->ask_count) {
        all->asks[i] = (struct disagreement_ask){.ask = *ask};
        all->ask_count++;
    }
    struct disagreement_ask *same = &all->asks[i];
    if (same->count < DISAGREEMENT_RANKS)
        same->ranks[same->count] = rank;
    same->count++;
}

size_t disagreement_text(const struct disagreement *all, char *text, size_t bytes)
{
    struct text out = {.at = text, .room = bytes};
    if (all->sequence & WIRE_SEND_SEQUENCE)
        text_add(&out,
                 "send %" PRIu32 " with tag %" PRIu32 " in group %" PRIu32
                 " differs between its ranks",
                 (uint32_t)all->sequence,
                 (uint32_t)(all->sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX, all->group);
    else
        text_add(&out, "collective %" PRIu64 " of group %" PRIu32 " differs between ranks",
                 all->sequence, all->group);
    for (uint32_t i = 0; i < all->ask_count; i++) {
        char ask[192];
        wire_ask_text(&all->asks[i].ask, all->size, ask, sizeof(ask));
        text_add(&out, i == 0 ? ": " : "; ");
        text_add_ranks(&out, all->asks[i].ranks, all->asks[i].count, DISAGREEMENT_RANKS);
        text_add(&out, " asked for %s", ask);
    }
    if (all->others > 0)
        text_add(&out, "; %" PRIu32 " more asked for other things", all->others);
    return out.length;
}
