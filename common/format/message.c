#include "common/format/message.h"

#include <stdlib.h>
#include <string.h>

#include "common/format/message_fields.h"
#include "common/text/json_text.h"

#define FIELD_TEXT(key, member)                                                                    \
    {                                                                                              \
        key, MESSAGE_FIELD_TEXT, offsetof(struct message, member), 0, 0, 0,                        \
            sizeof(((struct message *)0)->member)                                                  \
    }
#define FIELD_NUMBER(key, kind, member, least, most)                                               \
    {                                                                                              \
        key, kind, offsetof(struct message, member), 0, least, most, 0                             \
    }
#define FIELD_BYTES(key, member)                                                                   \
    {                                                                                              \
        key, MESSAGE_FIELD_BYTES, offsetof(struct message, member), 0, 0, 0,                       \
            sizeof(((struct message *)0)->member)                                                  \
    }
#define FIELD_LIST(key, member, most)                                                              \
    {                                                                                              \
        key, MESSAGE_FIELD_LIST, offsetof(struct message, member), 0, 0, most, 0                   \
    }

enum field {
    END,
    PROTOCOL,
    SOFTWARE,
    NODE,
    PID,
    ROSTER,
    NONCE,
    MAC,
    WIRE,
    INCARNATION,
    SESSION,
    HEARD,
    PROVIDER,
    VERSION,
    MESSAGE_SIZE,
    ADDRESS,
    TOKEN,
    JOB,
    JOB_ID,
    GENERATION,
    LINEAGE,
    UID,
    WISHED_WORLD_SIZE,
    WORLD_SIZE,
    WISHED_RANK,
    WISHED_LOCAL_RANK,
    RANK,
    LOCAL_RANK,
    LOCAL_SIZE,
    NODE_INDEX,
    NODE_COUNT,
    MEMBER,
    FORMER,
    TIMEOUT,
    STRAGGLERS,
    LEAST_RANKS,
    WAIT,
    RESTART,
    RECOVERY,
    AGE,
    MARK,
    WHOLE,
    DURATION,
    REQUEST,
    GROUP_OR_JOB,
    GROUP,
    NTH,
    SEGMENT,
    BYTES,
    SEQUENCE,
    CHUNK_BYTES,
    LEAST_SHARD_BYTES,
    PINNED_BYTES,
    CODE,
    TEXT,
    WORDS,
    RANKS,
    MEMBERS,
    SERVERS,
    WEIGHTS,
    ELDERS,
    POSITIONS,
    FIGURES,
    DAEMON,
    FIELDS
};

#define RANK_MOST ((int64_t)MESSAGE_RANKS_MAX - 1)

static const struct message_field fields[FIELDS] = {
    [PROTOCOL] = FIELD_NUMBER("protocol", MESSAGE_FIELD_U32, protocol, 0, UINT32_MAX),
    [SOFTWARE] = FIELD_TEXT("software", software),
    [NODE] = FIELD_TEXT("node", node),
    [PID] = FIELD_NUMBER("pid", MESSAGE_FIELD_U32, pid, 0, INT32_MAX),
    [ROSTER] = FIELD_BYTES("roster", roster),
    [NONCE] = FIELD_BYTES("nonce", nonce),
    [MAC] = FIELD_BYTES("mac", mac),
    [WIRE] = FIELD_NUMBER("wire", MESSAGE_FIELD_U32, wire, 0, UINT32_MAX),
    [INCARNATION] = FIELD_NUMBER("incarnation", MESSAGE_FIELD_HEX, incarnation, 0, 0),
    [SESSION] = FIELD_NUMBER("session", MESSAGE_FIELD_HEX, session, 0, 0),
    [HEARD] = FIELD_NUMBER("heard", MESSAGE_FIELD_U64, heard, 0, INT64_MAX),
    [PROVIDER] = FIELD_TEXT("provider", provider),
    [VERSION] = FIELD_TEXT("version", version),
    [MESSAGE_SIZE] = FIELD_NUMBER("message_bytes", MESSAGE_FIELD_U32, message_bytes, 64, 1 << 28),
    [ADDRESS] = {"address", MESSAGE_FIELD_BYTES, offsetof(struct message, address),
                 offsetof(struct message, address_bytes), 0, 0, MESSAGE_ADDRESS_BYTES},
    [TOKEN] = FIELD_BYTES("token", token),
    [JOB] = FIELD_TEXT("job", job),
    [JOB_ID] = FIELD_NUMBER("job_id", MESSAGE_FIELD_HEX, job_id, 0, 0),
    [GENERATION] = FIELD_NUMBER("generation", MESSAGE_FIELD_U32, generation, 0, UINT32_MAX),
    [LINEAGE] = FIELD_NUMBER("lineage", MESSAGE_FIELD_HEX, lineage, 0, 0),
    [UID] = FIELD_NUMBER("uid", MESSAGE_FIELD_U32, uid, 0, UINT32_MAX),
    [WISHED_WORLD_SIZE] =
        FIELD_NUMBER("world_size", MESSAGE_FIELD_U32, world_size, 0, MESSAGE_RANKS_MAX),
    [WORLD_SIZE] = FIELD_NUMBER("world_size", MESSAGE_FIELD_U32, world_size, 1, MESSAGE_RANKS_MAX),
    [WISHED_RANK] = FIELD_NUMBER("rank", MESSAGE_FIELD_I32, rank, -1, RANK_MOST),
    [WISHED_LOCAL_RANK] = FIELD_NUMBER("local_rank", MESSAGE_FIELD_I32, local_rank, -1, RANK_MOST),
    [RANK] = FIELD_NUMBER("rank", MESSAGE_FIELD_I32, rank, 0, RANK_MOST),
    [LOCAL_RANK] = FIELD_NUMBER("local_rank", MESSAGE_FIELD_I32, local_rank, 0, RANK_MOST),
    [LOCAL_SIZE] = FIELD_NUMBER("local_size", MESSAGE_FIELD_U32, local_size, 1, MESSAGE_RANKS_MAX),
    [NODE_INDEX] = FIELD_NUMBER("node_index", MESSAGE_FIELD_U32, node_index, 0, RANK_MOST),
    [NODE_COUNT] = FIELD_NUMBER("node_count", MESSAGE_FIELD_U32, node_count, 1, MESSAGE_RANKS_MAX),
    [MEMBER] = FIELD_NUMBER("member", MESSAGE_FIELD_U32, member, 0, UINT32_MAX),
    [FORMER] = FIELD_NUMBER("former", MESSAGE_FIELD_U32, former, 0, UINT32_MAX),
    [TIMEOUT] =
        FIELD_NUMBER("timeout_ms", MESSAGE_FIELD_U32, timeout_ms, 0, MESSAGE_TIMEOUT_MAX_MS),
    [STRAGGLERS] =
        FIELD_NUMBER("stragglers_ms", MESSAGE_FIELD_U32, stragglers_ms, 0, MESSAGE_TIMEOUT_MAX_MS),
    [LEAST_RANKS] = {"least_ranks", MESSAGE_FIELD_OPTIONAL_U32,
                     offsetof(struct message, least_ranks), 0, 0, MESSAGE_RANKS_MAX, 0},
    [WAIT] = {"wait_ms", MESSAGE_FIELD_OPTIONAL_U32, offsetof(struct message, wait_ms), 0, 0,
              MESSAGE_TIMEOUT_MAX_MS, 0},
    [RESTART] =
        FIELD_NUMBER("restart_ms", MESSAGE_FIELD_U32, restart_ms, 0, MESSAGE_TIMEOUT_MAX_MS),
    [RECOVERY] = {"recovery", MESSAGE_FIELD_OPTIONAL_U32, offsetof(struct message, recovery), 0, 0,
                  MESSAGE_RECOVERY_MOST, 0},
    [AGE] = {"age_ms", MESSAGE_FIELD_OPTIONAL_U32, offsetof(struct message, age_ms), 0, 0,
             MESSAGE_TIMEOUT_MAX_MS, 0},
    [MARK] = {"mark", MESSAGE_FIELD_OPTIONAL_U32, offsetof(struct message, mark), 0, 0, UINT32_MAX,
              0},
    [WHOLE] = {"whole", MESSAGE_FIELD_OPTIONAL_U32, offsetof(struct message, whole), 0, 0, 1, 0},
    [DURATION] =
        FIELD_NUMBER("duration_ms", MESSAGE_FIELD_U32, duration_ms, 1, MESSAGE_TRACE_MAX_MS),
    [REQUEST] = FIELD_NUMBER("request", MESSAGE_FIELD_U32, request, 0, UINT32_MAX),
    [GROUP_OR_JOB] = FIELD_NUMBER("group", MESSAGE_FIELD_I32, group, -1, INT32_MAX),
    [GROUP] = FIELD_NUMBER("group", MESSAGE_FIELD_I32, group, 0, INT32_MAX),
    [NTH] = FIELD_NUMBER("nth", MESSAGE_FIELD_U32, nth, 0, INT32_MAX),
    [SEGMENT] = FIELD_NUMBER("segment", MESSAGE_FIELD_U32, segment, 0, UINT32_MAX),
    [BYTES] = FIELD_NUMBER("bytes", MESSAGE_FIELD_U64, bytes, 1, INT64_MAX),
    [SEQUENCE] = FIELD_NUMBER("sequence", MESSAGE_FIELD_U64, sequence, 0, INT64_MAX),
    [CHUNK_BYTES] = FIELD_NUMBER("chunk_bytes", MESSAGE_FIELD_U32, chunk_bytes, 64, 1 << 28),
    [LEAST_SHARD_BYTES] =
        FIELD_NUMBER("least_shard_bytes", MESSAGE_FIELD_U32, least_shard_bytes, 0, UINT32_MAX),
    [PINNED_BYTES] = FIELD_NUMBER("pinned_bytes", MESSAGE_FIELD_U64, pinned_bytes, 0, INT64_MAX),
    [CODE] = FIELD_NUMBER("code", MESSAGE_FIELD_I32, code, -100, 0),
    [TEXT] = FIELD_TEXT("text", text),
    /* A worker's text is so short that its line is not too long when every byte is escaped. */
    [WORDS] = {"text", MESSAGE_FIELD_TEXT, offsetof(struct message, text), 0, 0, 0,
               MESSAGE_WORDS_BYTES},
    [RANKS] = FIELD_LIST("ranks", ranks, RANK_MOST),
    [MEMBERS] = FIELD_LIST("members", members, UINT32_MAX),
    [SERVERS] = FIELD_LIST("servers", servers, UINT32_MAX),
    [WEIGHTS] = FIELD_LIST("weights", weights, UINT32_MAX),
    [ELDERS] = FIELD_LIST("elders", elders, UINT32_MAX),
    [POSITIONS] = {"positions", MESSAGE_FIELD_POSITIONS, 0, 0, 0, 0, 0},
    [FIGURES] = FIELD_LIST("figures", members, UINT32_MAX),
    [DAEMON] = FIELD_LIST("daemon", servers, UINT32_MAX),
};

#define KEYS_MAX 20

static const struct message_form {
    const char *name;
    enum message_conversation conversation;
    uint8_t keys[KEYS_MAX]; /* enum field, up to END */
} forms[MESSAGE_TYPES] = {
    [MESSAGE_NONE] = {"none", MESSAGE_TO_DAEMON, {END}},
    [MESSAGE_WORKER_HELLO] = {"hello", MESSAGE_TO_DAEMON, {PROTOCOL, SOFTWARE, PID}},
    [MESSAGE_JOIN] = {"join",
                      MESSAGE_TO_DAEMON,
                      {JOB, WISHED_WORLD_SIZE, WISHED_RANK, WISHED_LOCAL_RANK, TIMEOUT, RECOVERY,
                       AGE, MARK}},
    [MESSAGE_UNABLE] = {"unable", MESSAGE_TO_DAEMON, {JOB, WORLD_SIZE, WISHED_RANK, CODE, WORDS}},
    [MESSAGE_ENDING] = {"ending", MESSAGE_TO_DAEMON, {WORDS}},
    [MESSAGE_WORKER_GROUP_OPEN] = {"group_open", MESSAGE_TO_DAEMON, {REQUEST, RANKS, NTH, TIMEOUT}},
    [MESSAGE_WORKER_GROUP_CLOSE] = {"group_close", MESSAGE_TO_DAEMON, {GROUP}},
    [MESSAGE_SHARED_OPEN] = {"shared_open", MESSAGE_TO_DAEMON, {REQUEST, GROUP, NTH, BYTES}},
    [MESSAGE_SHARED_CLOSE] = {"shared_close", MESSAGE_TO_DAEMON, {GROUP, SEGMENT}},
    [MESSAGE_MEETING_OPEN] = {"meeting_open", MESSAGE_TO_DAEMON, {REQUEST, GROUP, BYTES}},
    [MESSAGE_HELD] = {"held", MESSAGE_TO_DAEMON, {GROUP, SEQUENCE, RANK}},
    [MESSAGE_LEAVE] = {"leave", MESSAGE_TO_DAEMON, {END}},
    [MESSAGE_RELEASE] = {"release", MESSAGE_TO_DAEMON, {END}},
    [MESSAGE_REJOIN] = {"rejoin",
                        MESSAGE_TO_DAEMON,
                        {TIMEOUT, STRAGGLERS, LEAST_RANKS, WAIT, WHOLE}},
    [MESSAGE_RETURN] = {"return",
                        MESSAGE_TO_DAEMON,
                        {JOB, LINEAGE, GENERATION, WORLD_SIZE, RANK, WISHED_LOCAL_RANK, FORMER,
                         TIMEOUT, STRAGGLERS, LEAST_RANKS, WAIT, WHOLE}},
    [MESSAGE_WORKER_PING] = {"ping", MESSAGE_TO_DAEMON, {END}},
    [MESSAGE_STATUS] = {"status", MESSAGE_TO_DAEMON, {END}},
    [MESSAGE_DRAIN] = {"drain", MESSAGE_TO_DAEMON, {END}},
    [MESSAGE_TRACE] = {"trace", MESSAGE_TO_DAEMON, {JOB, DURATION}},
    [MESSAGE_TRACE_READ] = {"trace_read", MESSAGE_TO_DAEMON, {END}},
    [MESSAGE_WHY] = {"why", MESSAGE_TO_DAEMON, {JOB}},

    [MESSAGE_DAEMON_HELLO] = {"hello", MESSAGE_TO_WORKER, {PROTOCOL, SOFTWARE, NODE, MEMBER}},
    [MESSAGE_WAITING] = {"waiting", MESSAGE_TO_WORKER, {TEXT}},
    [MESSAGE_JOINED] = {"joined",
                        MESSAGE_TO_WORKER,
                        {JOB_ID, GENERATION, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_SIZE, NODE_INDEX,
                         NODE_COUNT, GROUP, WEIGHTS, CHUNK_BYTES, LEAST_SHARD_BYTES, PINNED_BYTES,
                         TIMEOUT, LINEAGE, RESTART, RECOVERY}},
    [MESSAGE_WORKER_GROUP_OPENED] = {"group_opened",
                                     MESSAGE_TO_WORKER,
                                     {REQUEST, GROUP, WEIGHTS, CHUNK_BYTES, LEAST_SHARD_BYTES}},
    [MESSAGE_SHARED_OPENED] = {"shared_opened", MESSAGE_TO_WORKER, {REQUEST, GROUP, SEGMENT}},
    [MESSAGE_LEFT] = {"left", MESSAGE_TO_WORKER, {END}},
    [MESSAGE_RELEASED] = {"released", MESSAGE_TO_WORKER, {END}},
    [MESSAGE_PONG] = {"pong", MESSAGE_TO_WORKER, {END}},
    [MESSAGE_ERROR] = {"error", MESSAGE_TO_WORKER, {REQUEST, CODE, TEXT}},
    [MESSAGE_FAILED] = {"failed", MESSAGE_TO_WORKER, {GROUP_OR_JOB, CODE, TEXT}},
    [MESSAGE_DRAINING] = {"draining", MESSAGE_TO_WORKER, {END}},

    [MESSAGE_HELLO] = {"hello",
                       MESSAGE_BETWEEN_DAEMONS,
                       {PROTOCOL, SOFTWARE, NODE, ROSTER, NONCE, WIRE, INCARNATION}},
    [MESSAGE_AUTH] = {"auth", MESSAGE_BETWEEN_DAEMONS, {MAC}},
    [MESSAGE_FABRIC] = {"fabric",
                        MESSAGE_BETWEEN_DAEMONS,
                        {PROVIDER, VERSION, MESSAGE_SIZE, ADDRESS, TOKEN, SESSION, HEARD}},
    [MESSAGE_REFUSED] = {"refused", MESSAGE_BETWEEN_DAEMONS, {CODE, TEXT}},
    [MESSAGE_CONTESTED] = {"contested", MESSAGE_BETWEEN_DAEMONS, {TEXT}},
    [MESSAGE_PING] = {"ping", MESSAGE_BETWEEN_DAEMONS, {HEARD}},
    [MESSAGE_JOB_JOIN] = {"job_join",
                          MESSAGE_BETWEEN_DAEMONS,
                          {JOB, UID, PID, WISHED_WORLD_SIZE, WISHED_RANK, WISHED_LOCAL_RANK, MEMBER,
                           TIMEOUT, RECOVERY, AGE, MARK}},
    [MESSAGE_JOB_REFUSED] = {"job_refused", MESSAGE_BETWEEN_DAEMONS, {JOB, MEMBER, CODE, TEXT}},
    [MESSAGE_JOB_WAITING] = {"job_waiting", MESSAGE_BETWEEN_DAEMONS, {JOB, MEMBER, TEXT}},
    [MESSAGE_JOB_WITHDRAW] = {"job_withdraw", MESSAGE_BETWEEN_DAEMONS, {JOB, MEMBER}},
    [MESSAGE_JOB_UNABLE] = {"job_unable",
                            MESSAGE_BETWEEN_DAEMONS,
                            {JOB, UID, PID, WORLD_SIZE, WISHED_RANK, CODE, TEXT}},
    [MESSAGE_JOB_OPEN] = {"job_open",
                          MESSAGE_BETWEEN_DAEMONS,
                          {JOB, JOB_ID, GENERATION, LINEAGE, UID, TIMEOUT, RANKS, MEMBERS, SERVERS,
                           WEIGHTS, ELDERS, RECOVERY, MARK}},
    [MESSAGE_JOB_OPENED] = {"job_opened", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, CODE, TEXT}},
    [MESSAGE_JOB_READY] = {"job_ready", MESSAGE_BETWEEN_DAEMONS, {JOB_ID}},
    [MESSAGE_JOB_FAILED] = {"job_failed", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, CODE, TEXT}},
    [MESSAGE_JOB_CLOSE] = {"job_close", MESSAGE_BETWEEN_DAEMONS, {JOB_ID}},
    [MESSAGE_GROUP_JOIN] = {"group_join",
                            MESSAGE_BETWEEN_DAEMONS,
                            {JOB_ID, RANK, REQUEST, RANKS, NTH, TIMEOUT, CODE, TEXT}},
    [MESSAGE_GROUP_REFUSED] = {"group_refused",
                               MESSAGE_BETWEEN_DAEMONS,
                               {JOB_ID, RANK, REQUEST, RANKS, NTH, CODE, TEXT}},
    [MESSAGE_GROUP_OPEN] = {"group_open", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, GROUP, RANKS, NTH}},
    [MESSAGE_GROUP_OPENED] = {"group_opened", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, GROUP, CODE, TEXT}},
    [MESSAGE_GROUP_READY] = {"group_ready", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, GROUP}},
    [MESSAGE_GROUP_LEAVE] = {"group_leave", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, GROUP, RANK}},
    [MESSAGE_GROUP_CLOSE] = {"group_close", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, GROUP}},
    [MESSAGE_GROUP_FAILED] = {"group_failed", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, GROUP, CODE, TEXT}},
    [MESSAGE_RANK_LEFT] = {"rank_left", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, RANK, POSITIONS}},
    [MESSAGE_RANK_WAITING] = {"rank_waiting", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, RANK, TEXT}},
    [MESSAGE_LATE_QUERY] = {"late_query", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, GROUP, SEQUENCE}},
    [MESSAGE_LATE_REPLY] = {"late_reply",
                            MESSAGE_BETWEEN_DAEMONS,
                            {JOB_ID, GROUP, SEQUENCE, RANKS}},
    [MESSAGE_WHY_QUERY] = {"why_query", MESSAGE_BETWEEN_DAEMONS, {JOB_ID, REQUEST}},
    [MESSAGE_WHY_REPLY] = {"why_reply",
                           MESSAGE_BETWEEN_DAEMONS,
                           {JOB_ID, REQUEST, FIGURES, DAEMON}},
    [MESSAGE_JOB_REJOIN] = {"job_rejoin",
                            MESSAGE_BETWEEN_DAEMONS,
                            {LINEAGE, GENERATION, WISHED_WORLD_SIZE, RANK, WISHED_LOCAL_RANK, PID,
                             MEMBER, TIMEOUT, STRAGGLERS, LEAST_RANKS, WAIT, WHOLE, CODE, TEXT}},
    [MESSAGE_JOB_RETURN] = {"job_return",
                            MESSAGE_BETWEEN_DAEMONS,
                            {JOB, UID, LINEAGE, GENERATION, WORLD_SIZE, RANK, WISHED_LOCAL_RANK,
                             PID, MEMBER, FORMER, TIMEOUT, STRAGGLERS, LEAST_RANKS, WAIT, WHOLE}},
    [MESSAGE_JOB_RETURNED] = {"job_returned", MESSAGE_BETWEEN_DAEMONS, {JOB, MEMBER}},
    [MESSAGE_RANK_GONE] = {"rank_gone",
                           MESSAGE_BETWEEN_DAEMONS,
                           {LINEAGE, GENERATION, MEMBER, CODE, TEXT}},
    [MESSAGE_NODE_UNABLE] = {"unable_node", MESSAGE_BETWEEN_DAEMONS, {TEXT}},
    [MESSAGE_NODE_DRAINING] = {"draining", MESSAGE_BETWEEN_DAEMONS, {END}},
    [MESSAGE_NODE_RETIRING] = {"retiring", MESSAGE_BETWEEN_DAEMONS, {END}},
};

static int message_decode_object(struct message *message, enum message_conversation conversation,
                                 const struct message_object *object, struct error *error)
{
    char name[32];
    int result = message_object_type(object, name, sizeof(name), error);
    if (result < 0)
        return result;
    for (int type = MESSAGE_NONE + 1; type < MESSAGE_TYPES; type++) {
        const struct message_form *form = &forms[type];
        if (form->conversation != conversation || strcmp(form->name, name) != 0)
            continue;
        message->type = (enum message_type)type;
        for (int i = 0; i < KEYS_MAX && form->keys[i] != END; i++) {
            result = message_field_get(message, &fields[form->keys[i]], object, error);
            if (result < 0) {
                error_prefix(error, "message %s", name);
                return result;
            }
        }
        return 0;
    }
    return error_set(error, ERR_PROTOCOL, "unknown message type '%s'", name);
}

int message_decode(struct message *message, enum message_conversation conversation,
                   const char *line, size_t length, struct error *error)
{
    struct message_object *object;
    int result = message_object_parse(&object, line, length, error);
    if (result < 0)
        return result;
    struct message *decoded = calloc(1, sizeof(*decoded));
    if (!decoded) {
        message_object_free(object);
        return error_set(error, ERR_MEMORY, "no memory for a message");
    }
    result = message_decode_object(decoded, conversation, object, error);
    if (result < 0)
        message_clear(decoded);
    else
        *message = *decoded;
    free(decoded);
    message_object_free(object);
    return result;
}

char *message_encode(const struct message *message, size_t *length)
{
    const struct message_form *form = &forms[message->type];
    struct json_text text;
    json_text_init(&text);
    json_text_open_object(&text, NULL);
    json_text_string(&text, "type", form->name);
    for (int i = 0; i < KEYS_MAX && form->keys[i] != END; i++)
        message_field_put(message, &fields[form->keys[i]], &text);
    json_text_close_object(&text);
    json_text_raw(&text, "\n", 1);
    return json_text_take(&text, length);
}

static bool message_form_has_list(const struct message_form *form)
{
    for (int i = 0; i < KEYS_MAX && form->keys[i] != END; i++) {
        enum message_field_kind kind = fields[form->keys[i]].kind;
        if (kind == MESSAGE_FIELD_LIST || kind == MESSAGE_FIELD_POSITIONS)
            return true;
    }
    return false;
}

bool message_begins_list(enum message_conversation conversation, const char *head, size_t bytes)
{
    static const char begin[] = "{\"type\":\"";
    const size_t skipped = sizeof(begin) - 1;
    if (bytes < skipped || memcmp(head, begin, skipped) != 0)
        return false;
    const char *name = head + skipped, *end = memchr(name, '"', bytes - skipped);
    for (int type = MESSAGE_NONE + 1; end && type < MESSAGE_TYPES; type++) {
        const struct message_form *form = &forms[type];
        if (form->conversation == conversation && strlen(form->name) == (size_t)(end - name) &&
            memcmp(form->name, name, (size_t)(end - name)) == 0)
            return message_form_has_list(form);
    }
    return false;
}

void message_clear(struct message *message)
{
    struct message_list *lists[] = {&message->ranks, &message->members, &message->servers,
                                    &message->weights, &message->elders};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        free(lists[i]->values);
        *lists[i] = (struct message_list){0};
    }
    free(message->positions);
    message->positions = NULL;
    message->position_count = 0;
}

int message_list_set(struct message_list *list, const uint32_t *values, uint32_t count)
{
    uint32_t *copy = malloc((count ? count : 1) * sizeof(*copy));
    if (!copy)
        return ERR_MEMORY;
    if (count > 0)
        memcpy(copy, values, count * sizeof(*copy));
    *list = (struct message_list){copy, count};
    return 0;
}

int message_copy(struct message *to, const struct message *from)
{
    *to = *from;
    to->ranks = to->members = to->servers = to->weights = to->elders = (struct message_list){0};
    to->positions = NULL;
    to->position_count = 0;
    if (message_list_set(&to->ranks, from->ranks.values, from->ranks.count) < 0 ||
        message_list_set(&to->members, from->members.values, from->members.count) < 0 ||
        message_list_set(&to->servers, from->servers.values, from->servers.count) < 0 ||
        message_list_set(&to->weights, from->weights.values, from->weights.count) < 0 ||
        message_list_set(&to->elders, from->elders.values, from->elders.count) < 0)
        goto failed;
    if (from->position_count > 0) {
        to->positions = malloc(from->position_count * sizeof(*to->positions));
        if (!to->positions)
            goto failed;
        memcpy(to->positions, from->positions, from->position_count * sizeof(*to->positions));
        to->position_count = from->position_count;
    }
    return 0;
failed:
    message_clear(to);
    return ERR_MEMORY;
}

const char *message_type_name(enum message_type type)
{
    return (unsigned)type < MESSAGE_TYPES ? forms[type].name : "unknown";
}
