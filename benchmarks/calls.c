/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Makes system calls when told to. `madvise 100000` on standard input: so many calls at full speed, then the
 * nanoseconds of CPU time they took are printed: on a shared machine, what others run meanwhile is not ours. One
 * process for all rounds, so that they differ in nothing but the tracing.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static unsigned long long now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

int main(void)
{
	size_t page = sysconf(_SC_PAGESIZE);
	void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	unsigned long long count, started;
	char call[16];

	if (memory == MAP_FAILED)
		return 1;
	while (scanf("%15s %llu", call, &count) == 2) {
		int is_madvise = !strcmp(call, "madvise"), is_malloc = !strcmp(call, "malloc");

		started = now_ns();
		if (is_malloc)
			while (count--) {
				void *volatile piece = malloc(64 + (count & 1023));

				free(piece);
			}
		else if (is_madvise)
			while (count--)
				syscall(SYS_madvise, memory, page, MADV_NORMAL);
		else
			while (count--)
				syscall(SYS_getpid);
		printf("%llu\n", now_ns() - started);
		fflush(stdout);
	}
	return 0;
}
