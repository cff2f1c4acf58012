/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * storm madvise|getpid COUNT|SECONDSs: one system call at full speed, from one thread.
 * `storm madvise 1000003` makes so many calls, `storm getpid 2s` as many as fit in two seconds.
 */
#include "workload.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#define BATCH 4096

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void call_many(void *memory, size_t length, unsigned long count)
{
	if (memory)
		while (count--)
			madvise(memory, length, MADV_DONTNEED);
	else
		while (count--)
			syscall(SYS_getpid);
}

int main(int argc, char **argv)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned long count = 0, wanted = ~0UL;
	double started, seconds = 1e9, took;
	void *memory = NULL;
	char *end;

	if (argc < 3 || (strcmp(argv[1], "madvise") && strcmp(argv[1], "getpid")))
		usage("storm madvise|getpid COUNT|SECONDSs");
	if (argv[2][strlen(argv[2]) - 1] == 's') {
		seconds = strtod(argv[2], &end);
		if (strcmp(end, "s"))
			usage("storm madvise|getpid COUNT|SECONDSs");
	} else {
		wanted = number(argv[2]);
	}
	if (!strcmp(argv[1], "madvise")) {
		memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
		if (memory == MAP_FAILED)
			die("mmap");
	}
	begin();
	started = now();
	do {
		unsigned long batch = wanted - count < BATCH ? wanted - count : BATCH;

		call_many(memory, page, batch);
		count += batch;
		took = now() - started;
	} while (count < wanted && took < seconds);
	step("%s count=%lu seconds=%.3f calls_per_s=%.0f ns_per_call=%.1f", argv[1], count, took,
	     (double)count / took, took * 1e9 / (double)count);
	return 0;
}
