/* A queue by priority: a leftist heap (C. A. Crane, 1972; D. E. Knuth, The Art of Computer
 * Programming, volume 3, section 5.2.3). Its entries are members of what is queued, so nothing is
 * allocated. Putting one in and taking any out takes some log2(n) steps at the most, whatever the
 * order in which they come; what is first is known at once. */
#ifndef COMMON_BASE_HEAP_H
#define COMMON_BASE_HEAP_H

#include <stdbool.h>
#include <stdint.h>

/* In one heap at most; its members are the heap's. */
struct heap_entry {
    struct heap_entry *left, *right, *parent;
    uint32_t rank; /* steps to the nearest place without an entry; the right side has the fewer */
};

struct heap {
    struct heap_entry *first; /* NULL: empty */
    /* A total order: it says no both ways for none but an entry and itself. */
    bool (*goes_before)(const struct heap_entry *entry, const struct heap_entry *other);
};

void heap_add(struct heap *heap, struct heap_entry *entry);
/* The entry must be in this heap. */
void heap_remove(struct heap *heap, struct heap_entry *entry);

/* For walks through all of them, in no particular order, from heap->first on: the next one, or
 * NULL. */
struct heap_entry *heap_next(const struct heap_entry *entry);

/* Assert that the entries are in order; for tests. */
void heap_check(const struct heap *heap);

#endif
