#include "server/disagreement.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

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

struct text {
    char *at;
    size_t room;
    size_t length;
};

static void text_add(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void text_add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(text->at + text->length, text->room - text->length, format, arguments);
    va_end(arguments);
    if (wanted < 0)
        return;
    size_t left = text->room - text->length - 1;
    text->length += (size_t)wanted < left ? (size_t)wanted : left;
}

static void text_add_ranks(struct text *text, const struct disagreement_ask *ask)
{
    text_add(text, ask->count == 1 ? "rank" : "ranks");
    uint32_t named = ask->count < DISAGREEMENT_RANKS ? ask->count : DISAGREEMENT_RANKS;
    for (uint32_t i = 0; i < named; i++)
        text_add(text, i == 0 ? " %" PRIu32 : ", %" PRIu32, ask->ranks[i]);
    if (ask->count > named)
        text_add(text, " and %" PRIu32 " more", ask->count - named);
}

size_t disagreement_text(const struct disagreement *all, char *text, size_t bytes)
{
    struct text out = {.at = text, .room = bytes};
    if (all->sequence & WIRE_SEND_SEQUENCE)
        text_add(&out,
                 "the ranks disagree on send %" PRIu32 " with tag %" PRIu32 " in group %" PRIu32,
                 (uint32_t)all->sequence,
                 (uint32_t)(all->sequence >> WIRE_SEND_TAG_SHIFT) & WIRE_SEND_TAG_MAX, all->group);
    else
        text_add(&out, "the ranks disagree on collective %" PRIu64 " of group %" PRIu32,
                 all->sequence, all->group);
    for (uint32_t i = 0; i < all->ask_count; i++) {
        char ask[192];
        wire_ask_text(&all->asks[i].ask, all->size, ask, sizeof(ask));
        text_add(&out, i == 0 ? ": " : "; ");
        text_add_ranks(&out, &all->asks[i]);
        text_add(&out, " asked for %s", ask);
    }
    if (all->others > 0)
        text_add(&out, "; %" PRIu32 " more asked for other things", all->others);
    return out.length;
}
