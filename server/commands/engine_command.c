#include "server/commands/engine_command.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/memory.h"

static size_t command_number_count(const struct engine_command *command)
{
    if (command->kind == COMMAND_JOB_OPEN)
        return command->roster->world_size + 2 * (size_t)command->roster->server_count;
    return command->kind == COMMAND_GROUP_OPEN ? command->members.count : 0;
}

/* Copies `count` numbers to *end, and moves it behind them. */
static const uint32_t *command_copy_numbers(uint32_t **end, const uint32_t *numbers, size_t count)
{
    uint32_t *copy = *end;
    if (count > 0)
        memcpy(copy, numbers, count * sizeof(*numbers));
    *end += count;
    return copy;
}

/* Lists are as long as the users of a job want them; everything else is small. */
static struct engine_command_item *command_item_create(const struct engine_command *command)
{
    size_t numbers = command_number_count(command);
    size_t bytes = sizeof(struct engine_command_item) + numbers * sizeof(uint32_t);
    return numbers > 0 ? calloc(1, bytes) : memory_require(1, bytes, "an engine command");
}

struct engine_command_item *engine_command_copy(const struct engine_command *command)
{
    struct engine_command_item *item = command_item_create(command);
    if (!item)
        return NULL;
    item->command = *command;
    uint32_t *end = item->numbers;
    if (command->kind == COMMAND_JOB_OPEN) {
        const struct engine_job *lent = command->roster;
        struct engine_job *roster = &item->roster;
        *roster = *lent;
        roster->rank_nodes = command_copy_numbers(&end, lent->rank_nodes, lent->world_size);
        roster->server_nodes = command_copy_numbers(&end, lent->server_nodes, lent->server_count);
        roster->server_weights =
            command_copy_numbers(&end, lent->server_weights, lent->server_count);
        item->command.roster = roster;
    } else if (command->kind == COMMAND_GROUP_OPEN) {
        item->command.members.ranks =
            command_copy_numbers(&end, command->members.ranks, command->members.count);
    }
    return item;
}
