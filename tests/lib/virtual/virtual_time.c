/* Chance and virtual time: what happens when, and at which daemon. A daemon that stands still has
 * what happens at it later, in the same order; one that is gone gives back what it carries. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/virtual/virtual_private.h"

/* splitmix64 */
uint64_t virtual_random(struct virtual_cluster *cluster, uint64_t below)
{
    uint64_t z = (cluster->random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return below ? z % below : 0;
}

static bool sooner(const struct virtual_happening *a, const struct virtual_happening *b)
{
    return a->time_ns < b->time_ns || (a->time_ns == b->time_ns && a->order < b->order);
}

static struct virtual_happening *list_append(struct virtual_happenings *list)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 256;
        list->items = realloc(list->items, list->capacity * sizeof(*list->items));
        EXPECT(list->items);
    }
    return &list->items[list->count++];
}

static void heap_push(struct virtual_happenings *heap, struct virtual_happening it)
{
    list_append(heap);
    uint32_t at = heap->count - 1;
    while (at > 0 && sooner(&it, &heap->items[(at - 1) / 2])) {
        heap->items[at] = heap->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->items[at] = it;
}

static struct virtual_happening heap_pop(struct virtual_happenings *heap)
{
    struct virtual_happening top = heap->items[0];
    struct virtual_happening last = heap->items[--heap->count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && sooner(&heap->items[child + 1], &heap->items[child]))
            child++;
        if (!sooner(&heap->items[child], &last))
            break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    return top;
}

static void schedule_at(struct virtual_cluster *cluster, struct virtual_node *node,
                        uint64_t time_ns, virtual_happen *happen, void *what, uint64_t number)
{
    heap_push(&cluster->heap, (struct virtual_happening){.time_ns = time_ns,
                                                         .order = cluster->order++,
                                                         .happen = happen,
                                                         .what = what,
                                                         .number = number,
                                                         .node = node});
}

void virtual_schedule(struct virtual_cluster *cluster, struct virtual_node *node, uint64_t delay_ns,
                      virtual_happen *happen, void *what, uint64_t number)
{
    schedule_at(cluster, node, cluster->now_ns + delay_ns, happen, what, number);
}

void virtual_schedule_in(struct virtual_cluster *cluster, struct virtual_channel *channel,
                         virtual_happen *happen, void *what, uint64_t number)
{
    uint64_t time_ns = cluster->now_ns + virtual_random(cluster, cluster->options.most_delay_ns);
    if (time_ns < channel->last_ns)
        time_ns = channel->last_ns;
    channel->last_ns = time_ns;
    schedule_at(cluster, channel->node, time_ns, happen, what, number);
}

uint64_t virtual_time_next_ns(const struct virtual_cluster *cluster)
{
    return cluster->heap.count ? cluster->heap.items[0].time_ns : UINT64_MAX;
}

void virtual_time_step(struct virtual_cluster *cluster)
{
    struct virtual_happening it = heap_pop(&cluster->heap);
    if (it.node && it.node->paused)
        *list_append(&it.node->waiting) = it;
    else
        it.happen(cluster, it.what, it.number);
}

void virtual_time_go_on(struct virtual_node *node)
{
    struct virtual_happenings *waiting = &node->waiting;
    for (uint32_t i = 0; i < waiting->count; i++) {
        const struct virtual_happening *it = &waiting->items[i];
        virtual_schedule(node->cluster, node, 0, it->happen, it->what, it->number);
    }
    waiting->count = 0;
}

bool virtual_time_is_due(const struct virtual_node *node, virtual_happen *happen,
                         bool (*matches)(const void *what, uint64_t number), uint64_t number)
{
    const struct virtual_happenings *heap = &node->cluster->heap;
    for (uint32_t i = 0; i < heap->count; i++) {
        const struct virtual_happening *it = &heap->items[i];
        if (it->node == node && it->happen == happen && it->time_ns <= node->cluster->now_ns &&
            matches(it->what, number))
            return true;
    }
    return false;
}

bool virtual_time_drain(struct virtual_node *node)
{
    struct virtual_cluster *cluster = node->cluster;
    struct virtual_happenings before = cluster->heap, gone = node->waiting;
    cluster->heap = node->waiting = (struct virtual_happenings){0};
    for (uint32_t i = 0; i < before.count; i++) {
        if (before.items[i].node == node)
            *list_append(&gone) = before.items[i];
        else
            heap_push(&cluster->heap, before.items[i]);
    }
    for (uint32_t i = 0; i < gone.count; i++)
        gone.items[i].happen(cluster, gone.items[i].what, gone.items[i].number);
    bool any = gone.count > 0;
    free(before.items);
    free(gone.items);
    return any;
}
