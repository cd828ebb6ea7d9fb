#include "common/base/heap.h"

#include <assert.h>
#include <stddef.h>

static uint32_t heap_rank(const struct heap_entry *entry)
{
    return entry ? entry->rank : 0;
}

/* Restore the rank and order of the entry's sides after one of them has changed. */
static void heap_balance(struct heap_entry *entry)
{
    if (heap_rank(entry->left) < heap_rank(entry->right)) {
        struct heap_entry *left = entry->left;
        entry->left = entry->right;
        entry->right = left;
    }
    entry->rank = heap_rank(entry->right) + 1;
}

/* Merge two heaps, given by their first entries, either of which may be NULL. Their right sides,
 * which are short, become one; the first entry of the result has no parent yet. */
static struct heap_entry *heap_merge(const struct heap *heap, struct heap_entry *a,
                                     struct heap_entry *b)
{
    struct heap_entry *top = NULL, *last = NULL, **place = &top;
    while (a && b) {
        if (heap->goes_before(b, a)) {
            struct heap_entry *first = b;
            b = a;
            a = first;
        }
        *place = a;
        a->parent = last;
        last = a;
        place = &a->right;
        a = a->right;
    }
    *place = a ? a : b;
    if (*place)
        (*place)->parent = last;
    for (; last; last = last->parent)
        heap_balance(last);
    return top;
}

void heap_add(struct heap *heap, struct heap_entry *entry)
{
    *entry = (struct heap_entry){.rank = 1};
    heap->first = heap_merge(heap, heap->first, entry);
}

void heap_remove(struct heap *heap, struct heap_entry *entry)
{
    struct heap_entry *parent = entry->parent;
    struct heap_entry *rest = heap_merge(heap, entry->left, entry->right);
    if (rest)
        rest->parent = parent;
    if (!parent)
        heap->first = rest;
    else if (parent->left == entry)
        parent->left = rest;
    else
        parent->right = rest;
    /* Each rank that changes on the way up is one more than the one below: that ends soon. */
    uint32_t before;
    for (; parent; parent = before == parent->rank ? NULL : parent->parent) {
        before = parent->rank;
        heap_balance(parent);
    }
}

struct heap_entry *heap_next(const struct heap_entry *entry)
{
    if (entry->left) /* without a left side there is no right one */
        return entry->left;
    const struct heap_entry *parent = entry->parent;
    while (parent && (parent->right == entry || !parent->right)) {
        entry = parent;
        parent = entry->parent;
    }
    return parent ? parent->right : NULL;
}

void heap_check(const struct heap *heap)
{
    assert(!heap->first || !heap->first->parent);
    for (const struct heap_entry *it = heap->first; it; it = heap_next(it)) {
        assert(heap_rank(it->left) >= heap_rank(it->right));
        assert(it->rank == heap_rank(it->right) + 1);
        assert(!it->left || (it->left->parent == it && !heap->goes_before(it->left, it)));
        assert(!it->right || (it->right->parent == it && !heap->goes_before(it->right, it)));
    }
}
