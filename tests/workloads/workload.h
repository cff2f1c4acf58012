/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the workloads share: one line per step, `name key=value ...`, so that a test can read what was really
 * done; the text of a failure; and a gate, so that a tracer can attach before the first step.
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024UL * 1024UL)

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void usage(const char *text)
{
	fprintf(stderr, "usage: %s\n", text);
	exit(2);
}

static inline unsigned long number(const char *text)
{
	char *end;
	unsigned long value = strtoul(text, &end, 0);

	if (end == text || *end)
		usage("a number was expected");
	return value;
}

/* Says what was done. Flushed at once: the next step may be the last. */
__attribute__((format(printf, 1, 2))) static inline void step(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	fflush(stdout);
}

static inline const char *error_name(int error)
{
	const char *name = error ? strerrorname_np(error) : "0";

	return name ? name : "unknown";
}

/* Says the pid; with WORKLOAD_WAIT set, waits for a byte (or the end) on standard input. */
static inline void begin(void)
{
	char byte;

	step("begin pid=%d", getpid());
	if (getenv("WORKLOAD_WAIT") && read(STDIN_FILENO, &byte, 1) < 0)
		die("read from standard input");
}

#endif
