/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * mmap N BYTES [MODE]: N calls of one kind.
 * pair: N mmap, then N munmap; leak: N mmap, kept; mremap: one mmap, grown N times by BYTES;
 * brk: N times BYTES up, N times down; fail: N mmap of no length (EINVAL).
 * Raw system calls where libc would add some of its own.
 */
#include "workload.h"

#include <sys/mman.h>
#include <sys/syscall.h>

static char *map(unsigned long length)
{
	return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void map_many(unsigned long count, unsigned long length, int unmap)
{
	char **memory = calloc(count, sizeof(*memory));

	if (!memory)
		die("calloc");
	for (unsigned long i = 0; i < count; i++) {
		memory[i] = map(length);
		if (memory[i] == MAP_FAILED)
			die("mmap");
		*memory[i] = 1;
	}
	step("mmap count=%lu length_bytes=%lu", count, length);
	if (!unmap)
		return;
	for (unsigned long i = 0; i < count; i++)
		if (munmap(memory[i], length))
			die("munmap");
	step("munmap count=%lu length_bytes=%lu", count, length);
}

static void grow(unsigned long count, unsigned long length)
{
	char *memory = map(length);

	if (memory == MAP_FAILED)
		die("mmap");
	for (unsigned long i = 1; i <= count; i++) {
		memory = mremap(memory, i * length, (i + 1) * length, MREMAP_MAYMOVE);
		if (memory == MAP_FAILED)
			die("mremap");
	}
	step("mremap count=%lu old_length_bytes=%lu length_bytes=%lu", count, count * length, (count + 1) * length);
}

static void move_break(unsigned long count, unsigned long length)
{
	unsigned long start = (unsigned long)syscall(SYS_brk, 0);

	for (unsigned long i = 1; i <= count; i++)
		if ((unsigned long)syscall(SYS_brk, start + i * length) != start + i * length)
			die("brk");
	for (unsigned long i = count; i-- > 0;)
		syscall(SYS_brk, start + i * length);
	step("brk count=%lu length_bytes=%lu up=%lu down=%lu", 2 * count, length, count, count);
}

static void fail(unsigned long count)
{
	unsigned long failed = 0;

	for (unsigned long i = 0; i < count; i++)
		failed += map(0) == MAP_FAILED && errno == EINVAL;
	step("mmap count=%lu length_bytes=0 failed=%lu errno=EINVAL", count, failed);
}

int main(int argc, char **argv)
{
	unsigned long count, length;
	const char *mode;

	if (argc < 3)
		usage("mmap N BYTES [pair|leak|mremap|brk|fail]");
	count = number(argv[1]);
	length = number(argv[2]);
	mode = argc > 3 ? argv[3] : "pair";
	begin();
	if (!strcmp(mode, "pair") || !strcmp(mode, "leak"))
		map_many(count, length, !strcmp(mode, "pair"));
	else if (!strcmp(mode, "mremap"))
		grow(count, length);
	else if (!strcmp(mode, "brk"))
		move_break(count, length);
	else if (!strcmp(mode, "fail"))
		fail(count);
	else
		usage("mmap N BYTES [pair|leak|mremap|brk|fail]");
	return 0;
}
