/* Checks of rules that every timeline of a trace must keep. */
#ifndef TESTS_LIB_SERVER_TRACE_LANES_H
#define TESTS_LIB_SERVER_TRACE_LANES_H

#include "server/shoalctl/trace_timeline.h"

/* Slices are in order, and on each lane inside or beside each other; lanes are as counted. */
void trace_lanes_check(const struct trace_timeline *timeline);

#endif
