/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * shm_full write|fallocate|touch [FOLDER] [unlink]: runs a small tmpfs (/dev/shm) full.
 * write and fallocate end with ENOSPC; touch maps a file twice as large as the tmpfs and dies of SIGBUS.
 * A file system above 1 GiB is refused: that is the host's own, not a container's.
 */
#include "workload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#define CHUNK (MIB / 4)

static unsigned long fill(int file, int by_write)
{
	static char chunk[CHUNK];
	unsigned long done = 0;
	ssize_t got;

	for (;; done += (unsigned long)got) {
		got = by_write ? write(file, chunk, CHUNK) :
				 (fallocate(file, 0, (off_t)done, CHUNK) ? -1 : (ssize_t)CHUNK);
		if (got < 0)
			return done;
	}
}

static void touch(int file, unsigned long length, unsigned long page)
{
	volatile char *memory;

	if (ftruncate(file, (off_t)length))
		die("ftruncate");
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	step("touch address=%p length_bytes=%lu", (void *)memory, length);
	for (unsigned long at = 0; at < length; at += page)
		memory[at] = 1;
	step("touch survived");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "", *folder = argc > 2 ? argv[2] : "/dev/shm";
	struct statvfs fs;
	char path[300];
	int file;

	if (strcmp(mode, "write") && strcmp(mode, "fallocate") && strcmp(mode, "touch"))
		usage("shm_full write|fallocate|touch [FOLDER] [unlink]");
	if (statvfs(folder, &fs))
		die(folder);
	if (fs.f_blocks == 0 || fs.f_blocks * fs.f_frsize > 1024 * MIB) {
		fprintf(stderr, "%s is larger than 1 GiB: not filled\n", folder);
		return 2;
	}
	snprintf(path, sizeof(path), "%s/rtdebug-full-%d", folder, getpid());
	begin();
	file = open(path, O_CREAT | O_EXCL | O_RDWR, 0600);
	if (file < 0)
		die(path);
	if (argc > 3 && unlink(path))
		die("unlink");
	if (!strcmp(mode, "touch")) {
		touch(file, 2 * fs.f_blocks * fs.f_frsize, fs.f_frsize);
	} else {
		unsigned long done = fill(file, !strcmp(mode, "write"));

		step("%s length_bytes=%lu errno=%s", mode, done, error_name(errno));
	}
	return 0;
}
