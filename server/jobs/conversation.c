#include "server/jobs/conversation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void conversation_drop_first(struct conversation *conversation)
{
    struct conversation_line *line = conversation->first;
    conversation->first = line->next;
    if (!conversation->first)
        conversation->last = NULL;
    conversation->kept_bytes -= line->length;
    quota_give_back(&conversation->users, line->user, line->length);
    conversation->kept--;
    free(line);
}

void conversation_clear(struct conversation *conversation)
{
    while (conversation->first)
        conversation_drop_first(conversation);
    *conversation = (struct conversation){0};
}

void conversation_keep_nothing(struct conversation *conversation)
{
    while (conversation->first)
        conversation_drop_first(conversation);
}

bool conversation_may_begin(const struct conversation *conversation, uint32_t user)
{
    return user == 0 || quota_used(&conversation->users, user) < CONVERSATION_USER_MOST_BYTES;
}

bool conversation_say(struct conversation *conversation, uint32_t user, const char *text,
                      size_t length)
{
    if (conversation->kept_bytes + length > CONVERSATION_MOST_BYTES)
        return false;
    struct conversation_line *line = malloc(sizeof(*line) + length + 1);
    if (!line || quota_take(&conversation->users, user, length) != 0) {
        free(line);
        return false;
    }
    line->next = NULL;
    line->user = user;
    line->length = length;
    memcpy(line->text, text, length);
    line->text[length] = '\0';
    if (conversation->last)
        conversation->last->next = line;
    else
        conversation->first = line;
    conversation->last = line;
    conversation->kept_bytes += length;
    conversation->kept++;
    conversation->said++;
    return true;
}

int conversation_acknowledge(struct conversation *conversation, uint64_t heard, struct error *error)
{
    uint64_t before = conversation->said - conversation->kept;
    if (heard > conversation->said || heard < before)
        return error_set(error, ERR_PROTOCOL,
                         "it has heard %" PRIu64 " lines, it says, and it was between %" PRIu64
                         " and %" PRIu64,
                         heard, before, conversation->said);
    for (uint64_t i = before; i < heard; i++)
        conversation_drop_first(conversation);
    return 0;
}
