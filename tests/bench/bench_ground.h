/* Functions that the programs which play daemons share: a failure ends the program, and figures of
 * this process. */
#ifndef TESTS_BENCH_BENCH_GROUND_H
#define TESTS_BENCH_BENCH_GROUND_H

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/config/config.h"
#include "common/text/number_text.h"

#define NEED_TEXT(condition, text)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s: line %d: %s: %s\n", __FILE__, __LINE__, #condition, text);        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define NEED(condition) NEED_TEXT(condition, "")

/* Return the processor time of this thread alone: other work of the machine must not count. */
static inline uint64_t processor_ns(void)
{
    struct timespec time;
    NEED(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

static inline uint64_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* The configuration of a node of a roster, with these sections of JSON behind the servers. */
static inline void configure_node(struct config *config, uint32_t node, uint32_t nodes,
                                  const char *sections)
{
    size_t room = 1024 + (size_t)nodes * 96, used;
    char *text = malloc(room);
    NEED(text);
    used = (size_t)snprintf(text, room, "{\"node\":\"n%u\",\"servers\":[", node);
    for (uint32_t i = 0; i < nodes; i++)
        used += (size_t)snprintf(text + used, room - used,
                                 "%s{\"name\":\"n%u\",\"address\":\"127.0.0.1:%u\"}", i ? "," : "",
                                 i, 7000u + i);
    snprintf(text + used, room - used, "],%s}", sections);
    struct config_problems problems = {0};
    NEED_TEXT(config_parse(config, text, "bench", &problems) == 0,
              problems.count ? problems.lines[0] : "");
    config_problems_clear(&problems);
    free(text);
}

/* Memory that is not the daemons'. */
static inline void *own(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(memory != MAP_FAILED);
    return memory;
}

static inline uint32_t number_of(const char *text, uint32_t least, uint32_t most)
{
    uint64_t number = 0;
    struct error error;
    if (number_text_parse(text, least, most, &number, &error) < 0) {
        fprintf(stderr, "%s: %s\n", __FILE__, error.text);
        exit(2);
    }
    return (uint32_t)number;
}

#endif
