#include "server/jobs/admission.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/error.h"

int admission_init(struct admission *admission, uint32_t node_count)
{
    struct admission_node *nodes = calloc(node_count, sizeof(*nodes));
    if (!nodes)
        return ERR_MEMORY;
    *admission = (struct admission){.nodes = nodes, .node_count = node_count};
    return 0;
}

void admission_clear(struct admission *admission)
{
    free(admission->nodes);
    *admission = (struct admission){0};
}

static bool admission_equal(const struct admission_source *a, const struct admission_source *b)
{
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

void admission_learn(struct admission *admission, uint32_t node,
                     const struct admission_source *source)
{
    struct admission_node *of = &admission->nodes[node];
    uint32_t gone = 0;
    while (gone < of->count && !admission_equal(&of->sources[gone], source))
        gone++;
    if (gone == ADMISSION_NODE_SOURCES)
        gone = 0;
    if (gone < of->count) {
        memmove(&of->sources[gone], &of->sources[gone + 1],
                (of->count - gone - 1) * sizeof(of->sources[0]));
        of->count--;
    }
    of->sources[of->count++] = *source;
}

bool admission_knows(const struct admission *admission, const struct admission_source *source)
{
    for (uint32_t node = 0; node < admission->node_count; node++) {
        for (uint32_t i = 0; i < admission->nodes[node].count; i++) {
            if (admission_equal(&admission->nodes[node].sources[i], source))
                return true;
        }
    }
    return false;
}

/* Whoever has an IPv6 network has 2^64 addresses of it: the first half says who it is. Addresses of
 * IPv4 have none. */
static bool admission_is_same(const struct admission_place *a, const struct admission_place *b)
{
    static const uint8_t none[8];
    bool whole = a->known || memcmp(a->source.bytes, none, sizeof(none)) == 0;
    return a->known == b->known && memcmp(a->source.bytes, b->source.bytes, whole ? 16 : 8) == 0;
}

static bool admission_competes(const struct admission_place *place,
                               const struct admission_place *other, bool of_source)
{
    return of_source ? admission_is_same(place, other) : place->known == other->known;
}

/* Return one of those that compete with the place, or the place itself: of its source if of_source,
 * else of all. count: how many compete; `number` is random. */
static struct admission_place *admission_pick(const struct admission *admission,
                                              struct admission_place *place, bool of_source,
                                              uint32_t count, uint64_t number)
{
    uint64_t nth = number % (count + 1);
    struct admission_place *other;
    DL_FOREACH(admission->places, other)
    {
        if (admission_competes(place, other, of_source) && nth-- == 0)
            return other;
    }
    return place;
}

/* Whether it is too many of all that are known, or of all strangers. */
static bool admission_is_crowded(const struct admission *admission, bool known, uint64_t number)
{
    if (known)
        return admission->known >= ADMISSION_KNOWN_MAX;
    if (admission->strangers < ADMISSION_STRANGER_START)
        return false;
    uint32_t over = admission->strangers - ADMISSION_STRANGER_START;
    uint32_t span = ADMISSION_STRANGER_MAX - ADMISSION_STRANGER_START;
    return number % 100 < ADMISSION_STRANGER_RATE + (100 - ADMISSION_STRANGER_RATE) * over / span;
}

struct admission_place *admission_enter(struct admission *admission, struct admission_place *place,
                                        const struct admission_source *source, uint64_t random)
{
    uint64_t number = random >> 8, chance = random & 0xff;
    place->source = *source;
    place->known = admission_knows(admission, source);
    uint32_t of_source = 0;
    const struct admission_place *other;
    DL_FOREACH(admission->places, other)
    {
        of_source += admission_is_same(place, other);
    }
    struct admission_place *gone = NULL;
    if (of_source >= (place->known ? ADMISSION_KNOWN_SOURCE_MAX : ADMISSION_STRANGER_SOURCE_MAX))
        gone = admission_pick(admission, place, true, of_source, number);
    else if (admission_is_crowded(admission, place->known, chance * 100 / 256))
        gone = admission_pick(admission, place, false,
                              place->known ? admission->known : admission->strangers, number);
    if (gone == place)
        return place;
    place->held = true;
    DL_APPEND(admission->places, place);
    *(place->known ? &admission->known : &admission->strangers) += 1;
    return gone;
}

struct admission_place *admission_yield(const struct admission *admission,
                                        const struct admission_source *source, uint64_t random)
{
    bool known = admission->strangers == 0;
    uint32_t count = known ? admission->known : admission->strangers;
    if (count == 0 || (known && !admission_knows(admission, source)))
        return NULL;
    uint64_t nth = random % count;
    struct admission_place *place;
    DL_FOREACH(admission->places, place)
    {
        if (place->known == known && nth-- == 0)
            return place;
    }
    return NULL;
}

void admission_leave(struct admission *admission, struct admission_place *place)
{
    if (!place->held)
        return;
    place->held = false;
    DL_DELETE(admission->places, place);
    *(place->known ? &admission->known : &admission->strangers) -= 1;
}
