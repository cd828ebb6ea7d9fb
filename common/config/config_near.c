#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/config/config_report.h"

/* Longer keys are compared by their beginning. */
#define NEAR_BYTES 64

struct near {
    const char *key;
    const struct config_section *home; /* where the unknown key stands */
    const char *pointer;               /* of `home` */
    unsigned least;
    struct config_pointer *nearest;
};

static unsigned least_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Levenshtein's distance without regard to case, two neighbours swapped counting as one step
 * (optimal string alignment). */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned rows[3][NEAR_BYTES + 1];
    size_t a_length = strnlen(a, NEAR_BYTES);
    size_t b_length = strnlen(b, NEAR_BYTES);
    unsigned *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_length; j++)
        above[j] = before[j] = (unsigned)j;
    for (size_t i = 1; i <= a_length; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_length; j++) {
            int x = tolower((unsigned char)a[i - 1]);
            int y = tolower((unsigned char)b[j - 1]);
            row[j] = least_of(above[j - 1] + (x != y), least_of(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
                y == tolower((unsigned char)a[i - 2]))
                row[j] = least_of(row[j], before[j - 2] + 1);
        }
        unsigned *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[b_length];
}

/* `key` NULL: the section itself. A key of the object where the unknown one stands wins a tie. */
static void near_consider(struct near *near, const struct config_section *section,
                          const struct config_key *key)
{
    bool here = section == near->home;
    const char *name = key ? key->name : section->name;
    unsigned distance = edit_distance(near->key, name);
    if (key && section->name[0]) {
        char joined[NEAR_BYTES];
        snprintf(joined, sizeof(joined), "%s_%s", section->name, name);
        distance = least_of(distance, edit_distance(near->key, joined));
    }
    unsigned cost = 2 * distance + !here;
    if (cost >= near->least)
        return;
    near->least = cost;
    config_pointer_cut(near->nearest, 0);
    if (here && key) {
        *near->nearest = (struct config_pointer){.length = strlen(near->pointer)};
        memcpy(near->nearest->text, near->pointer, near->nearest->length);
    } else if (key && section->name[0]) {
        config_pointer_push(near->nearest, section->name);
    }
    config_pointer_push(near->nearest, name);
}

void config_near_key(const struct config_section *section, const char *home, const char *key,
                     struct config_pointer *nearest)
{
    struct near near = {
        .key = key, .home = section, .pointer = home, .least = ~0u, .nearest = nearest};
    for (size_t i = 0; i < config_section_count; i++) {
        const struct config_section *other = &config_sections[i];
        for (size_t j = 0; j < other->key_count; j++)
            near_consider(&near, other, &other->keys[j]);
        if (other->name[0])
            near_consider(&near, other, NULL);
    }
    near_consider(&near, &config_server_section, NULL);
    if (section == &config_server_section) {
        for (size_t j = 0; j < section->key_count; j++)
            near_consider(&near, section, &section->keys[j]);
    }
}
